//! READDIRPLUS (RFC 1813 section 3.3.17).

use super::readdir::Chain;
use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, Name, PostOpAttr, Verifier};
use weir_xdr::xdr_struct;

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
        /// Most bytes of file numbers, names and cookies.
        pub dir_count: u32,
        /// Most bytes of results, the whole `READDIRPLUS3resok` included.
        pub max_count: u32,
    }

    /// A name and its file (`entryplus3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Entry {
        /// Number of the file.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// Where to go on after it.
        pub cookie: u64,
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Its handle.
        pub handle: Option<FileHandle>,
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

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(
        &Args { dir: handle(), cookie: 3, verifier: *b"verifier", dir_count: 512, max_count: 4096 },
        &format!("{HANDLE} 00000000 00000003 76657269 66696572 00000200 00001000"),
    );
    let entry = Entry {
        fileid: 42,
        name: "a".into(),
        cookie: 4,
        attr: Some(attr()),
        handle: Some(handle()),
    };
    let listing =
        Listing { dir: None, verifier: *b"verifier", entries: Chain(vec![entry]), eof: false };
    vec![
        result::<Res>(
            &Ok(listing),
            &format!(
                "00000000 00000000 76657269 66696572
                 00000001 00000000 0000002a 00000001 61000000 00000000 00000004
                 00000001 {ATTR} 00000001 {HANDLE}
                 00000000 00000000"
            ),
            132,
        ),
        result::<Res>(
            &Err(Failure { status: Error::TooSmall, rest: None }),
            "00002715 00000000",
            0,
        ),
    ]
}
