//! READDIR (RFC 8881 section 18.23).
//!
//! A page of entries never exceeds the size that the client allows, and holds at least one entry
//! unless the directory has ended. A caller needs search permission to get attributes of entries,
//! as for LOOKUP. With read permission alone, it gets names and file IDs.
//!
//! The attributes of an entry are those that GETATTR returns. If a delegate does not tell them in time,
//! the entry has an error, and so have those of the page's other files that are written elsewhere: a page
//! waits once. If the client does not ask for errors of entries (`rdattr_error`), the page ends there.
//!
//! An entry that cannot be looked up has the error, too, or fails the operation; only one that is refused (of another
//! file system, say) is left out if the client does not ask for errors.

use crate::handle::Node;
use crate::v4::attrs::{self, Besides};
use crate::v4::context::{Context, Target};
use crate::v4::ops::attr::{OF_DATA, attributes};
use crate::v4::ops::name::current_dir;
use crate::v4::status::of_vfs;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weir_nfs::v4::attr::{Attrs, FILEID, MOUNTED_ON_FILEID, RDATTR_ERROR, WRITE_ONLY};
use weir_nfs::v4::op::readdir::{self, Entries, Entry, Listing};
use weir_nfs::v4::{Bitmap, Error, OpCode};
use weir_vfs::{Attr, DirEntry, ReaddirRequest};
use weir_xdr::Encoder;

/// Size of the verifier, the end of the list, and eof.
const FRAME_BYTES: usize = 8 + 4 + 4;
/// Assumed size of an entry, to choose how many to read at a time; few are smaller.
const ENTRY_BYTES: usize = 64;
/// Maximum number of entries to read at a time.
const MAX_ENTRIES: usize = 1024;

pub(crate) async fn readdir(cx: &mut Context, args: readdir::Args) -> readdir::Res {
    if !args.attrs.intersection(WRITE_ONLY).is_empty() {
        return Err(Error::Inval);
    }
    if matches!(args.cookie, 1 | 2) {
        return Err(Error::BadCookie);
    }
    let (dir, _) = current_dir(cx).await?;
    let row = OpCode::Readdir.reply_bound().fixed_bytes();
    let bytes_left =
        (args.max_count as usize).min((cx.reply_bytes_left + FRAME_BYTES).saturating_sub(row));
    let bytes_left = bytes_left.checked_sub(FRAME_BYTES).ok_or(Error::TooSmall)?;
    cx.reserve(row + bytes_left).await?;

    let asked = args.attrs.difference(Bitmap::of(&[RDATTR_ERROR]));
    let beyond = asked.difference(Bitmap::of(&[FILEID, MOUNTED_ON_FILEID]));
    let besides = Besides::of_file_system(&dir, asked).await?;
    let may_search = beyond.is_empty() || dir.may_search().await?;
    let looked_up = EntryRequest {
        asked,
        beyond,
        errors: args.attrs.contains(RDATTR_ERROR),
        besides,
        may_search,
        is_slow: AtomicBool::new(false),
    };
    let mut page = Page { bytes_left, entries: Vec::new(), scratch: Encoder::new() };
    let (mut cookie, mut eof) = (args.cookie, false);
    'filling: while !eof {
        let most = (page.bytes_left / ENTRY_BYTES).clamp(8, MAX_ENTRIES);
        let (fs, caller, id) = (dir.fs(), &dir.caller, dir.node.id);
        let read = fs
            .readdir(
                caller,
                ReaddirRequest {
                    dir: id,
                    cookie,
                    max_entries: most,
                    with_attr: may_search && !beyond.is_empty(),
                },
            )
            .await;
        let read = read.map_err(of_vfs)?;
        eof = read.eof || read.entries.is_empty();
        for found in read.entries {
            let entry = match entry(cx, &dir, &found, &looked_up).await {
                Err(Error::Delay) if !page.entries.is_empty() => {
                    eof = false;
                    break 'filling;
                }
                entry => entry?,
            };
            cookie = found.cookie;
            if let Some(entry) = entry
                && !page.push(entry)
            {
                eof = false;
                break 'filling;
            }
        }
    }
    if page.entries.is_empty() && !eof {
        return Err(Error::TooSmall);
    }
    Ok(Listing { verifier: [0; 8], entries: Entries(page.entries), eof })
}

/// What to return for each entry, and what that needs.
struct EntryRequest {
    asked: Bitmap,
    /// Those of `asked` that the directory itself does not hold.
    beyond: Bitmap,
    /// Whether the client asked for `rdattr_error`: an error of one entry then does not fail the
    /// operation.
    errors: bool,
    besides: Besides,
    may_search: bool,
    /// Whether a delegate has not told a file's attributes in time.
    is_slow: AtomicBool,
}

/// An entry with its attributes; `None` if it is to be left out: removed meanwhile, or refused to this client.
async fn entry(
    cx: &Context,
    dir: &Target<'_>,
    found: &DirEntry,
    request: &EntryRequest,
) -> Result<Option<Entry>, Error> {
    let EntryRequest { asked, beyond, errors, besides, may_search, is_slow } = request;
    let (cookie, name) = (found.cookie, found.name[..].into());
    if !may_search {
        // As for an entry that is refused; without errors of entries, none could be listed.
        let attrs = failed(Error::Access);
        return if *errors { Ok(Some(Entry { cookie, name, attrs })) } else { Err(Error::Access) };
    }
    if found.attr.is_none() && beyond.is_empty() {
        let fileid = asked.contains(FILEID).then_some(found.ino);
        let mounted_on_fileid = asked.contains(MOUNTED_ON_FILEID).then_some(found.ino);
        let rdattr_error = errors.then_some(Ok(()));
        let attrs = Attrs { rdattr_error, fileid, mounted_on_fileid, ..Attrs::default() };
        return Ok(Some(Entry { cookie, name, attrs }));
    }
    let attr = match looked_up(dir, found).await {
        Ok(attr) => attr,
        Err(Error::Stale | Error::NoEnt) => return Ok(None),
        Err(error) if *errors => return Ok(Some(Entry { cookie, name, attrs: failed(error) })),
        // A mount point, say, which would keep this client from listing the directory at all.
        Err(Error::Access) => return Ok(None),
        Err(error) => return Err(error),
    };
    let node = Node { id: attr.id, ..dir.node };
    let entered = cx.exports.enter(node);
    if entered != node {
        let root = mounted(cx, entered, *asked).await;
        return Ok(root.map(|attrs| Entry { cookie, name, attrs }));
    }
    let target = Target { node, caller: dir.caller.clone(), ..*dir };
    let attrs = async {
        let newest = newest(cx, &target, *asked, is_slow).await?;
        let attr = newest.as_ref().unwrap_or(&attr);
        let besides = besides.of_file(&cx.nfs.id_map, &target, attr, *asked).await?;
        Ok(attrs::of_file(cx, &target, attr, &besides, *asked))
    };
    let attrs = match attrs.await {
        Ok(attrs) => Attrs { rdattr_error: errors.then_some(Ok(())), ..attrs },
        Err(Error::Stale | Error::NoEnt) => return Ok(None),
        Err(error) if *errors => failed(error),
        Err(error) => return Err(error),
    };
    Ok(Some(Entry { cookie, name, attrs }))
}

/// The attributes of an entry. If the store has listed it without, it is looked up: it may be gone, and otherwise the
/// client has to learn of it.
async fn looked_up<'a>(dir: &Target<'_>, found: &'a DirEntry) -> Result<Cow<'a, Attr>, Error> {
    match &found.attr {
        Some(attr) => Ok(Cow::Borrowed(attr)),
        None => {
            let entry = dir.node.id.entry(&found.name);
            let attr = dir.fs().lookup(&dir.caller, entry).await.map_err(of_vfs)?;
            Ok(Cow::Owned(attr))
        }
    }
}

/// The attributes to show of a file that may be delegated; `None`: those of the store.
async fn newest(
    cx: &Context,
    target: &Target<'_>,
    asked: Bitmap,
    is_slow: &AtomicBool,
) -> Result<Option<Attr>, Error> {
    let (recalls, client) = (&cx.services.recalls, cx.known_client());
    if asked.intersection(OF_DATA).is_empty() || !recalls.may_be_delegated(target.node) {
        return Ok(None);
    }
    if is_slow.load(Relaxed) && recalls.is_written_elsewhere(target.node, client) {
        return Err(Error::Delay);
    }
    let attr = recalls.attr(target.fs(), target.node, client).await.map_err(of_vfs);
    if attr == Err(Error::Delay) {
        is_slow.store(true, Relaxed);
    }
    attr.map(Some)
}

/// The attributes of the root of an export that is mounted on an entry; `None` if the client may
/// not access the export.
async fn mounted(cx: &Context, root: Node, asked: Bitmap) -> Option<Attrs> {
    let target = cx.target(root).ok()?;
    match attributes(cx, &target, asked).await {
        Ok(attrs) => Some(attrs),
        // A broken export must not hide the others (RFC 8881 section 5.8.1.12).
        Err(error) => Some(failed(error)),
    }
}

/// Those of an entry whose attributes cannot be told.
fn failed(error: Error) -> Attrs {
    Attrs { rdattr_error: Some(Err(error)), ..Attrs::default() }
}

struct Page {
    bytes_left: usize,
    entries: Vec<Entry>,
    scratch: Encoder,
}

impl Page {
    /// Adds an entry if it fits. Returns whether it did.
    fn push(&mut self, entry: Entry) -> bool {
        let mark = self.scratch.mark();
        self.scratch.put(&entry);
        let len = self.scratch.mark() - mark;
        self.scratch.truncate(mark);
        if len > self.bytes_left {
            return false;
        }
        self.bytes_left -= len;
        self.entries.push(entry);
        true
    }
}
