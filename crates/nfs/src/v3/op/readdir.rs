//! READDIR (RFC 1813 section 3.3.16).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, Name, PostOpAttr, Verifier};
use weir_xdr::{Decode, Decoder, Encode, Encoder, xdr_struct};

xdr_struct! {
    /// Which names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory.
        pub dir: FileHandle,
        /// Start after the entry with this cookie; 0: at the beginning.
        pub cookie: u64,
        /// The verifier returned with the cookie; zeros with cookie 0.
        pub verifier: Verifier,
        /// Most bytes of results, the whole `READDIR3resok` included.
        pub count: u32,
    }

    /// A name (`entry3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Entry {
        /// Number of the file.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// Where to go on after it.
        pub cookie: u64,
    }

    /// Some of the directory's names.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Listing {
        /// Attributes of the directory.
        pub dir: PostOpAttr,
        /// Returned with a cookie, tells the server whether the cookie is still valid.
        pub verifier: Verifier,
        /// The names.
        pub entries: Chain<Entry>,
        /// No more follow.
        pub eof: bool,
    }
}

/// Names; a failure carries the directory's attributes.
pub type Res = Result<Listing, Failure<PostOpAttr>>;

/// A list encoded as a chain of optional elements (RFC 4506 section 4.19).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain<T>(pub Vec<T>);

impl<T: Encode> Encode for Chain<T> {
    fn encode(&self, e: &mut Encoder) {
        e.chain(&self.0);
    }
}

impl<T: Decode> Decode for Chain<T> {
    fn decode(d: &mut Decoder) -> weir_xdr::Result<Self> {
        d.chain(usize::MAX).map(Self)
    }
}

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(
        &Args { dir: handle(), cookie: 3, verifier: *b"verifier", count: 8192 },
        &format!("{HANDLE} 00000000 00000003 76657269 66696572 00002000"),
    );
    let listing = Listing {
        dir: Some(attr()),
        verifier: *b"verifier",
        entries: Chain(vec![
            Entry { fileid: 42, name: "a".into(), cookie: 4 },
            Entry { fileid: 43, name: "bcdef".into(), cookie: 5 },
        ]),
        eof: true,
    };
    vec![
        result::<Res>(
            &Ok(listing),
            &format!(
                "00000000 00000001 {ATTR} 76657269 66696572
                 00000001 00000000 0000002a 00000001 61000000 00000000 00000004
                 00000001 00000000 0000002b 00000005 62636465 66000000 00000000 00000005
                 00000000 00000001"
            ),
            60,
        ),
        result::<Res>(
            &Err(Failure { status: Error::BadCookie, rest: None }),
            "00002713 00000000",
            0,
        ),
    ]
}
