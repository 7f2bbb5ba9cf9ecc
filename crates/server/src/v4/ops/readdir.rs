//! READDIR (RFC 8881 section 18.23).
//!
//! A page of entries is never longer than the client allows, to the byte, and holds at least one
//! unless the directory is at its end. Attributes of entries are told to who may search the directory,
//! and could look them up; others who may read it get names and file numbers.

use crate::handle::Node;
use crate::v4::attrs::{self, Besides};
use crate::v4::context::{Context, Target};
use crate::v4::ops::attr::attributes;
use crate::v4::ops::name::current_dir;
use crate::v4::status::of_vfs;
use weir_nfs::v4::attr::{Attrs, FILEID, MOUNTED_ON_FILEID, RDATTR_ERROR, WRITE_ONLY};
use weir_nfs::v4::op::readdir::{self, Entries, Entry, Listing};
use weir_nfs::v4::{Bitmap, Error, OpCode};
use weir_vfs::DirEntry;
use weir_xdr::Encoder;

/// Verifier, the end of the entries, eof.
const FRAME_BYTES: usize = 8 + 4 + 4;
/// An entry's share of what is read at a time: not many are smaller.
const ENTRY_BYTES: usize = 64;
/// Most entries read at a time.
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
    let room = (args.max_count as usize).min((cx.room + FRAME_BYTES).saturating_sub(row));
    let room = room.checked_sub(FRAME_BYTES).ok_or(Error::TooSmall)?;
    cx.reserve(row + room).await?;

    let asked = args.attrs.difference(Bitmap::of(&[RDATTR_ERROR]));
    let beyond = asked.difference(Bitmap::of(&[FILEID, MOUNTED_ON_FILEID]));
    let besides = Besides::of_file_system(&dir, asked).await?;
    let may_search = beyond.is_empty() || dir.may_search().await?;
    let looked_up =
        Asked { asked, beyond, errors: args.attrs.contains(RDATTR_ERROR), besides, may_search };
    let mut page = Page { room, entries: Vec::new(), scratch: Encoder::new() };
    let (mut cookie, mut eof) = (args.cookie, false);
    'filling: while !eof {
        let most = (page.room / ENTRY_BYTES).clamp(8, MAX_ENTRIES);
        let (fs, caller, id) = (dir.fs(), &dir.caller, dir.node.id);
        let read = fs.readdir(caller, id, cookie, most, may_search && !beyond.is_empty()).await;
        let read = read.map_err(of_vfs)?;
        eof = read.eof || read.entries.is_empty();
        for found in read.entries {
            cookie = found.cookie;
            if let Some(entry) = entry(cx, &dir, &found, &looked_up).await?
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

/// What is to be told of each entry.
struct Asked {
    asked: Bitmap,
    /// What takes more than the directory itself.
    beyond: Bitmap,
    /// An entry whose attributes cannot be had says so, and the others are told.
    errors: bool,
    besides: Besides,
    may_search: bool,
}

/// An entry with its attributes; none when it vanished meanwhile.
async fn entry(
    cx: &Context,
    dir: &Target<'_>,
    found: &DirEntry,
    Asked { asked, beyond, errors, besides, may_search }: &Asked,
) -> Result<Option<Entry>, Error> {
    let (cookie, name) = (found.cookie, found.name[..].into());
    if !may_search {
        // As of an entry that cannot be looked up for another reason.
        let attrs = Attrs { rdattr_error: Some(Err(Error::Access)), ..Attrs::default() };
        return if *errors { Ok(Some(Entry { cookie, name, attrs })) } else { Err(Error::Access) };
    }
    if let Some(attr) = &found.attr {
        let node = Node { id: attr.id, ..dir.node };
        let entered = cx.exports.enter(node);
        if entered != node {
            return Ok(mounted(cx, entered, *asked).await.map(|attrs| Entry {
                cookie,
                name,
                attrs,
            }));
        }
        let target = Target { node, caller: dir.caller.clone(), ..*dir };
        let attrs = match besides.of_file(&cx.nfs.id_map, &target, attr, *asked).await {
            Ok(besides) => Attrs {
                rdattr_error: errors.then_some(Ok(())),
                ..attrs::of_file(cx, &target, attr, &besides, *asked)
            },
            Err(Error::Stale | Error::NoEnt) => return Ok(None),
            Err(error) if *errors => Attrs { rdattr_error: Some(Err(error)), ..Attrs::default() },
            Err(error) => return Err(error),
        };
        return Ok(Some(Entry { cookie, name, attrs }));
    }
    if !beyond.is_empty() {
        return Ok(None);
    }
    let fileid = asked.contains(FILEID).then_some(found.ino);
    let mounted_on_fileid = asked.contains(MOUNTED_ON_FILEID).then_some(found.ino);
    let rdattr_error = errors.then_some(Ok(()));
    let attrs = Attrs { rdattr_error, fileid, mounted_on_fileid, ..Attrs::default() };
    Ok(Some(Entry { cookie, name, attrs }))
}

/// The attributes of an export's root where its parent is listed; `None` where the client may not
/// see the export.
async fn mounted(cx: &Context, root: Node, asked: Bitmap) -> Option<Attrs> {
    let target = cx.target(root).ok()?;
    match attributes(cx, &target, asked).await {
        Ok(attrs) => Some(attrs),
        // One export that is broken does not hide the others (RFC 8881 section 5.8.1.12).
        Err(error) => Some(Attrs { rdattr_error: Some(Err(error)), ..Attrs::default() }),
    }
}

struct Page {
    room: usize,
    entries: Vec<Entry>,
    scratch: Encoder,
}

impl Page {
    /// Adds an entry if it fits.
    fn push(&mut self, entry: Entry) -> bool {
        let mark = self.scratch.mark();
        self.scratch.put(&entry);
        let len = self.scratch.mark() - mark;
        self.scratch.truncate(mark);
        if len > self.room {
            return false;
        }
        self.room -= len;
        self.entries.push(entry);
        true
    }
}
