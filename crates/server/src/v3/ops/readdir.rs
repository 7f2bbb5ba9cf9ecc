//! READDIR, READDIRPLUS.
//!
//! 1. Results never exceed the client's limit in bytes, and end between two entries.
//! 2. Only callers that may search the directory get attributes and handles, because they could
//!    also look them up. Others that may read it get names only.
//! 3. An entry has no attributes while another client has a write delegation of the file.
//! 4. Cookies are the store's, which are stable, so the cookie verifier never changes. The store
//!    does not use 0 to 2: 1 follows `.` and 2 follows `..`.

use super::info::MAX_IO_BYTES;
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::readdir::{self, Chain};
use weir_nfs::v3::op::readdirplus;
use weir_nfs::v3::types::{PostOpAttr, Verifier};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Attr, DirEntry, FileKind, ReaddirRequest};
use weir_xdr::{Encode, Opaque, wire_len};

const VERIFIER: Verifier = [0; 8];

/// Bytes of results without entries: attributes, verifier, end of the list, eof.
const BARE_BYTES: usize = 88 + 8 + 4 + 4;
/// Bytes before each element of a list.
const LINK_BYTES: usize = 4;
/// Maximum number of entries read from the store at a time.
const MAX_BATCH: usize = 1024;

pub(in crate::v3) async fn readdir(request: &Request<'_>, args: readdir::Args) -> readdir::Res {
    let dir = request.target(&args.dir)?;
    let bytes_left = reply_bytes(args.count);
    request.reserve(BARE_BYTES + bytes_left).await?;
    let mut names = Names { entries: Vec::new(), bytes_left };
    let read = read_names(&dir, args.cookie, args.verifier, &mut names).await;
    let attr = dir.attr().await;
    match read {
        Ok(eof) => Ok(readdir::Listing {
            dir: attr,
            verifier: VERIFIER,
            entries: Chain(names.entries),
            eof,
        }),
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

pub(in crate::v3) async fn readdirplus(
    request: &Request<'_>,
    args: readdirplus::Args,
) -> readdirplus::Res {
    let dir = request.target(&args.dir)?;
    let bytes_left = reply_bytes(args.max_count);
    request.reserve(BARE_BYTES + bytes_left).await?;
    let mut names = NamesPlus {
        dir: &dir,
        entries: Vec::new(),
        bytes_left,
        name_bytes_left: args.dir_count as usize,
    };
    let read = read_names(&dir, args.cookie, args.verifier, &mut names).await;
    let entries = Chain(names.entries);
    let attr = dir.attr().await;
    match read {
        Ok(eof) => Ok(readdirplus::Listing { dir: attr, verifier: VERIFIER, entries, eof }),
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

/// Bytes for entries in results of `count` bytes.
fn reply_bytes(count: u32) -> usize {
    (count.min(MAX_IO_BYTES) as usize).saturating_sub(BARE_BYTES)
}

/// Collects entries.
trait Sink {
    /// Whether entries have attributes.
    const WITH_ATTR: bool;

    /// How many more entries are likely to fit.
    fn batch(&self) -> usize;

    /// Adds an entry if it fits. Returns whether it did.
    fn take(&mut self, entry: DirEntry) -> bool;

    fn is_empty(&self) -> bool;
}

/// Reads entries until the sink is full or the directory ends. Returns whether the directory has
/// ended.
async fn read_names<S: Sink>(
    dir: &Target<'_>,
    cookie: u64,
    verifier: Verifier,
    names: &mut S,
) -> Result<bool, Error> {
    let itself = dir.getattr().await?;
    if itself.kind != FileKind::Directory {
        return Err(Error::NotDir);
    }
    if cookie != 0 && verifier != VERIFIER {
        return Err(Error::BadCookie);
    }
    let eof = fill(dir, itself, cookie, names).await?;
    if names.is_empty() && !eof { Err(Error::TooSmall) } else { Ok(eof) }
}

async fn fill<S: Sink>(
    dir: &Target<'_>,
    itself: Attr,
    cookie: u64,
    names: &mut S,
) -> Result<bool, Error> {
    let with_attr = S::WITH_ATTR && dir.check_search().await.is_ok();
    let read = async |after, most| {
        let page = dir
            .fs()
            .readdir(
                &dir.caller,
                ReaddirRequest { dir: dir.id(), cookie: after, max_entries: most, with_attr },
            )
            .await;
        page.map_err(convert::error)
    };
    let mut after = if cookie <= 2 { 0 } else { cookie };
    // Read before `.` and `..` are added, because this checks the caller's rights.
    let mut page = read(after, names.batch()).await?;
    if cookie < 2 {
        let above = dir.fs().parent(dir.id()).await.map_err(convert::error)?;
        let dots = [(".", itself, 1), ("..", above, 2)];
        for (name, attr, at) in dots.into_iter().skip(cookie as usize) {
            let (name, ino) = (name.into(), attr.id.ino);
            let attr = with_attr.then_some(attr);
            if !names.take(DirEntry { name, cookie: at, attr, ino }) {
                return Ok(false);
            }
        }
    }
    loop {
        let eof = page.eof || page.entries.is_empty();
        for entry in page.entries {
            after = entry.cookie;
            if !names.take(entry) {
                return Ok(false);
            }
        }
        if eof {
            return Ok(true);
        }
        page = read(after, names.batch()).await?;
    }
}

/// Adds an entry if it fits.
fn push_fitting<T: Encode>(entries: &mut Vec<T>, bytes_left: &mut usize, entry: T) -> bool {
    match bytes_left.checked_sub(LINK_BYTES + wire_len(&entry)) {
        Some(left) => {
            *bytes_left = left;
            entries.push(entry);
            true
        }
        None => false,
    }
}

/// Entries of READDIR.
struct Names {
    entries: Vec<readdir::Entry>,
    bytes_left: usize,
}

impl Sink for Names {
    const WITH_ATTR: bool = false;

    fn batch(&self) -> usize {
        // Assumes names of a dozen bytes.
        (self.bytes_left / 40).clamp(1, MAX_BATCH)
    }

    fn take(&mut self, entry: DirEntry) -> bool {
        let DirEntry { name, cookie, ino, .. } = entry;
        let entry = readdir::Entry { fileid: ino, name: Opaque(name.into()), cookie };
        push_fitting(&mut self.entries, &mut self.bytes_left, entry)
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Entries of READDIRPLUS, with attributes and handles.
struct NamesPlus<'a> {
    dir: &'a Target<'a>,
    entries: Vec<readdirplus::Entry>,
    bytes_left: usize,
    /// What is left of `dircount`, the bytes for file numbers, names and cookies. It is a hint, and
    /// does not apply to the first entry.
    name_bytes_left: usize,
}

impl Sink for NamesPlus<'_> {
    const WITH_ATTR: bool = true;

    fn batch(&self) -> usize {
        // Assumes names of a dozen bytes, attributes and a handle.
        (self.bytes_left / 172).min(self.name_bytes_left / 36 + 1).clamp(1, MAX_BATCH)
    }

    fn take(&mut self, entry: DirEntry) -> bool {
        let DirEntry { name, cookie, ino, attr } = entry;
        let handle = attr.as_ref().map(|attr| self.dir.handle_of(attr.id));
        let attr: PostOpAttr = attr.as_ref().and_then(|attr| self.dir.shown(attr));
        let name = Opaque(name.into());
        let names_left = self.name_bytes_left.checked_sub(8 + wire_len(&name) + 8);
        if names_left.is_none() && !self.entries.is_empty() {
            return false;
        }
        self.name_bytes_left = names_left.unwrap_or(0);
        let entry = readdirplus::Entry { fileid: ino, name, cookie, attr, handle };
        push_fitting(&mut self.entries, &mut self.bytes_left, entry)
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
