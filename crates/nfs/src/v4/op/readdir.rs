//! READDIR (RFC 8881 section 18.23): names in a directory.
//!
//! The entries are a linked list on the wire: `true` precedes each, `false` follows the last. An
//! [`Entry`] is encoded with the `true` before it, so that a server can encode entries one by one
//! and remove one that does not fit.

use crate::macros::samples;
use crate::v4::attr::Attrs;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::{Name, Verifier};
use weir_xdr::{Decode, Decoder, Encode, Encoder, Result as XdrResult, xdr_struct};

xdr_struct! {
    /// What to read of the current directory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Where to go on; 0: from the front.
        pub cookie: u64,
        /// The verifier returned with the cookie; zeros from the beginning.
        pub verifier: Verifier,
        /// Most bytes of names and cookies: a hint.
        pub dir_count: u32,
        /// Most bytes of [`Listing`].
        pub max_count: u32,
        /// Attributes to return of each entry.
        pub attrs: Bitmap,
    }

    /// Names, and whether more follow.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Listing {
        /// To come back with a cookie.
        pub verifier: Verifier,
        /// The names.
        pub entries: Entries,
        /// No more follow.
        pub eof: bool,
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where to go on after it.
    pub cookie: u64,
    /// The name.
    pub name: Name,
    /// Its attributes.
    pub attrs: Attrs,
}

/// Names in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(pub Vec<Entry>);

/// With the `true` before it.
impl Encode for Entry {
    fn encode(&self, e: &mut Encoder) {
        e.put(&true);
        e.u64(self.cookie);
        e.put(&self.name);
        e.put(&self.attrs);
    }
}

impl Encode for Entries {
    fn encode(&self, e: &mut Encoder) {
        self.0.iter().for_each(|entry| e.put(entry));
        e.put(&false);
    }
}

impl Decode for Entries {
    fn decode(d: &mut Decoder) -> XdrResult<Self> {
        let mut entries = Vec::new();
        while d.get()? {
            entries.push(Entry { cookie: d.u64()?, name: d.get()?, attrs: d.get()? });
        }
        Ok(Self(entries))
    }
}

/// Names.
pub type Res = Result<Listing, Error>;

samples! {
    args: [
        Args {
            cookie: 3,
            verifier: *b"verifier",
            dir_count: 100,
            max_count: 200,
            attrs: Bitmap::of(&[1]),
        } => "00000000 00000003 76657269 66696572 00000064 000000c8 00000001 00000002",
    ],
    results: [
        Ok(Listing {
            verifier: *b"verifier",
            entries: Entries(vec![Entry {
                cookie: 4,
                name: "a".into(),
                attrs: Attrs { size: Some(5), ..Attrs::default() },
            }]),
            eof: true,
        }) => "00000000 76657269 66696572 00000001 00000000 00000004 00000001 61000000 \
               00000001 00000010 00000008 00000000 00000005 00000000 00000001", variable 40;
        Ok(Listing::default()) => "00000000 00000000 00000000 00000000 00000000";
        Err(Error::TooSmall) => "00002715";
    ],
}
