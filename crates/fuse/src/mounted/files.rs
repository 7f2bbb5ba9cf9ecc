//! Open files: data.

use crate::mounted::file_system::{Answer, Answered, Keeper, Mounted};
use crate::mounted::handles::OpenFile;
use crate::mounted::locks::flock_owner;
use crate::mounted::names::new_attributes;
use crate::mounted::nodes::LastClose;
use crate::session::device::Device;
use crate::wire::abi::{
    self, CreateIn, FallocateIn, LseekIn, OpenFlags, OpenIn, ReadIn, ReleaseIn,
};
use crate::wire::reply::{Entry, Errno, entry_out, open_out};
use crate::wire::request::Requester;
use std::io::IoSlice;
use std::sync::{Arc, Once};
use weir_pagecache::{File, Segment, Segments};
use weir_vfs::{
    Access, Attr, Caller, Capabilities, CreateMode, EntryName, Error, FileId, IoFlags, LockOwner,
    LockRange, SegmentKind,
};
use zerocopy::IntoBytes;

/// Zeros, for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The bytes of segments read at `offset`, at most `len` of them.
pub(super) fn slices(segments: &Segments, offset: u64, len: usize) -> Vec<IoSlice<'_>> {
    let end = offset.saturating_add(len as u64);
    let mut slices = Vec::new();
    for segment in &segments.segments {
        match segment {
            Segment::Data { pages, .. } => pages.slices(0, &mut slices),
            Segment::Hole { start, end: hole_end } => {
                let mut left = (*hole_end).min(end).saturating_sub(*start);
                while left > 0 {
                    let now = left.min(ZEROS.len() as u64);
                    slices.push(IoSlice::new(&ZEROS[..now as usize]));
                    left -= now;
                }
            }
        }
    }
    slices
}

/// The access for the flags of open(2).
fn access_of(flags: u32) -> Result<Access, Errno> {
    match flags.cast_signed() & libc::O_ACCMODE {
        libc::O_RDONLY => Ok(Access::READ),
        libc::O_WRONLY => Ok(Access::WRITE),
        libc::O_RDWR => Ok(Access::READ | Access::WRITE),
        _ => Err(Errno(libc::EINVAL)),
    }
}

impl Mounted {
    /// The open file that a request names.
    pub(super) fn file(&self, fh: u64) -> Result<Arc<OpenFile>, Errno> {
        let found = self.files.get(fh as usize).map(|file| Arc::clone(&file));
        let open = found.ok_or(Errno(libc::EBADF))?;
        self.is_known(&open);
        Ok(open)
    }

    /// The kernel has got the reply to the open, because it names the open file. So it has dropped its pages: it does
    /// that before open(2) returns. A reply that was sent proves neither, as other requests may be quicker.
    fn is_known(&self, open: &OpenFile) {
        open.is_known.call_once(|| {
            if let Some(change) = open.drops_pages_of {
                self.nodes.pages_are_of(open.node, change);
            }
        });
    }

    pub(super) async fn open(&self, from: Requester, node: u64, args: &OpenIn) -> Answered {
        let id = self.nodes.file(node)?;
        let caller = self.caller(from);
        let access = access_of(args.flags)?;
        if let Some(observer) = &self.observer {
            observer.opening(id);
        }
        // A program need not be readable by who executes it.
        let file = match args.flags & abi::OPEN_TO_EXECUTE {
            0 => self.fs.open(&caller, id, access).await?,
            _ => self.fs.open_to_execute(&caller, id).await?,
        };
        if args.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
            self.kill_set_ids(id).await?;
        }
        let attr = file.getattr().await?;
        if self.nodes.note_change(node, attr.change) {
            self.drop_attributes(node);
        }
        // A program may have asked for the attributes in between: that says nothing of the pages.
        let dropped = self.nodes.drops_pages(node, attr.change).then_some(attr.change);
        let (fh, flags) = self.enter(file, node, args.flags, dropped)?;
        if self.may_hide_data(node, &attr) {
            // From now on, others are shown.
            self.drop_attributes(node);
        }
        Ok(Answer { file: Some(fh), ..Answer::of(&open_out(fh, flags)) })
    }

    pub(super) async fn create(
        &self,
        from: Requester,
        dir: u64,
        name: &[u8],
        args: &CreateIn,
    ) -> Answered {
        let dir = self.nodes.file(dir)?;
        let caller = self.caller(from);
        let access = access_of(args.flags)?;
        let mode = match args.flags.cast_signed() & libc::O_EXCL {
            0 => CreateMode::MayExist,
            _ => CreateMode::MustBeNew,
        };
        let set = new_attributes((args.mode, args.umask));
        let new = dir.entry(name).with(&set);
        let (made, file) = self.fs.create_open(&caller, new, mode, access).await?;
        let file = match file {
            Some(file) => file,
            // The access that a program asks for with a new file does not depend on the file's mode.
            None if made.created => match self.fs.open_made(&caller, made.attr.id, access).await {
                Ok(file) => file,
                Err(error) => {
                    // After any other failure, another client may use it by now.
                    if error == Error::AccessDenied {
                        self.remove_made(&caller, dir.entry(name), made.attr.id).await;
                    }
                    return Err(error.into());
                }
            },
            None => self.fs.open(&caller, made.attr.id, access).await?,
        };
        let is_new = made.created;
        if !is_new && args.flags.cast_signed() & libc::O_TRUNC != 0 {
            if args.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
                self.kill_set_ids(made.attr.id).await?;
            }
            file.truncate_async(0).await?;
        }
        let attr = if is_new { made.attr } else { file.getattr().await? };
        let node = self.nodes.learn(&attr);
        self.opened_entry(file, node, attr, args.flags).await
    }

    /// Removes a file that was created and could not be opened, unless its name belongs to another one by now.
    pub(super) async fn remove_made(&self, caller: &Caller, name: EntryName<'_>, made: FileId) {
        let named = self.fs.lookup(caller, name).await;
        if named.is_ok_and(|named| named.id == made)
            && let Err(error) = self.fs.unlink(caller, name).await
        {
            tracing::debug!("cannot remove a file that could not be opened: {error}");
        }
    }

    /// The reply to a request that created and opened a file, of whose node the kernel gets a use.
    pub(super) async fn opened_entry(
        &self,
        file: File,
        node: u64,
        attr: Attr,
        flags: u32,
    ) -> Answered {
        if let Some(observer) = &self.observer {
            observer.opening(attr.id);
        }
        self.nodes.drops_pages(node, attr.change);
        let (fh, treated) = match self.enter(file, node, flags, Some(attr.change)) {
            Ok(opened) => opened,
            Err(errno) => {
                self.unhide(self.nodes.take_hidden(node)).await;
                self.nodes.forget(&[abi::ForgetOne { nodeid: node, nlookup: 1 }]);
                return Err(errno);
            }
        };
        let attr = self.shown(node, attr);
        let mut out = entry_out(&Entry { node, attr, valid: self.settings.valid });
        if self.nodes.has_hidden(node) {
            out.attr.nlink = out.attr.nlink.saturating_sub(1);
        }
        let bytes = [out.as_bytes(), open_out(fh, treated).as_bytes()].concat();
        Ok(Answer { nodes: vec![node], file: Some(fh), ..Answer::bytes(bytes) })
    }

    /// Enters an open file; returns its number and how the kernel treats it. The kernel drops the pages that it may
    /// have of another change attribute than `drops_pages_of`, if that is given.
    fn enter(
        &self,
        file: File,
        node: u64,
        flags: u32,
        drops_pages_of: Option<u64>,
    ) -> Result<(u64, OpenFlags), Errno> {
        let flags = flags.cast_signed();
        let appends = flags & libc::O_APPEND != 0;
        let direct = flags & libc::O_DIRECT != 0 || self.kernel_pages.is_window() && appends;
        let able = file.capabilities().contains(Capabilities::UNCACHED);
        let wanted = match self.settings.keeper {
            Keeper::Auto if flags & libc::O_ACCMODE != libc::O_RDONLY => Keeper::Weir,
            Keeper::Auto if file.is_marked_uncached() || direct => Keeper::Weir,
            Keeper::Auto => Keeper::Kernel,
            Keeper::Window(_) if flags & libc::O_ACCMODE == libc::O_WRONLY || direct => {
                Keeper::Weir
            }
            Keeper::Window(_) => Keeper::Kernel,
            keeper => keeper,
        };
        let access = file.access();
        let keeper = self.nodes.opened(node, access, wanted);
        let passes = !self.settings.uncached || self.kernel_pages.is_window();
        let kernel_keeps = keeper == Keeper::Kernel && passes;
        // The kernel knows the end of a file only as it was: what is appended goes past its pages.
        let by_kernel = kernel_keeps && !direct && !appends;
        let open = OpenFile {
            file,
            node,
            // What the kernel keeps is not kept here as well.
            uncached: able && (self.settings.uncached || direct || kernel_keeps),
            by_kernel,
            drops_pages_of,
            is_known: Once::new(),
        };
        let treated = match by_kernel {
            true if drops_pages_of.is_some() => OpenFlags::empty(),
            true => OpenFlags::KEEP_CACHE,
            false => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        };
        let Some(key) = self.files.insert(Arc::new(open)) else {
            self.nodes.not_opened(node, access);
            return Err(Errno(libc::ENFILE));
        };
        Ok((key as u64, treated))
    }

    /// Forgets an open file.
    pub(super) async fn close(&self, fh: u64) {
        if let Some(open) = self.files.take(fh as usize) {
            let LastClose { locks, hidden } = self.nodes.closed(open.node, open.file.access());
            drop(locks);
            self.unhide(hidden).await;
        }
    }

    /// Answers a READ of resident pages, and returns how many bytes it sent. `None` if it has to wait,
    /// or fails.
    pub(crate) fn read_resident(
        &self,
        device: &Device,
        unique: u64,
        args: &ReadIn,
    ) -> Option<usize> {
        let open = self.files.get(args.fh as usize)?;
        self.is_known(&open);
        if open.uncached {
            return None;
        }
        let len = args.size as usize;
        let segments = open.file.read_segments_resident(args.offset, len)?;
        let slices = slices(&segments, args.offset, len);
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        self.counters.moved().read(bytes);
        let _ = device.reply(unique, 0, &slices);
        Some(bytes)
    }

    pub(super) async fn read(&self, args: &ReadIn) -> Answered {
        let open = self.file(args.fh)?;
        let (at, len) = (args.offset, args.size as usize);
        let end = at.checked_add(len as u64).ok_or(Errno(libc::EINVAL))?;
        let mut found = open.file.read_segments_async(at, len, open.flags()).await?;
        // A short read means the end of the file to the kernel.
        while !found.eof && found.end(at) < end {
            let next = found.end(at);
            let rest = (end - next) as usize;
            let more = open.file.read_segments_async(next, rest, open.flags()).await?;
            if more.segments.is_empty() {
                break;
            }
            found.segments.extend(more.segments);
            found.eof = more.eof;
        }
        let bytes = found.end(at).min(end) - at;
        self.counters.moved().read(bytes as usize);
        self.note_pages(&open, at, bytes);
        Ok(Answer { data: Some((found, at, len)), ..Answer::default() })
    }

    /// Notes that the kernel has pages of a range.
    fn note_pages(&self, open: &OpenFile, start: u64, bytes: u64) {
        if open.by_kernel {
            self.kernel_pages.note(open.node, start, bytes);
        }
    }

    pub(super) async fn write(&self, node: u64, args: &abi::WriteIn, data: &[u8]) -> Answered {
        let open = self.file(args.fh)?;
        let mut flags = open.flags();
        let given = args.flags.cast_signed();
        let from_kernels_cache = args.write_flags & abi::WRITE_CACHE != 0;
        // As the flags are now: fcntl(2) may have changed them since the open.
        if given & libc::O_APPEND != 0 && !open.by_kernel && !from_kernels_cache {
            flags |= IoFlags::APPEND;
        }
        if given & libc::O_SYNC == libc::O_SYNC {
            flags |= IoFlags::SYNC;
        } else if given & libc::O_DSYNC != 0 {
            flags |= IoFlags::DSYNC;
        }
        if args.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            self.kill_set_ids(self.nodes.file(node)?).await?;
        }
        let size = match from_kernels_cache {
            true => open.file.write_mapped_async(data, args.offset, flags).await?,
            false => open.file.write_at_async(data, args.offset, flags).await?,
        } as u32;
        self.counters.moved().written(size as usize);
        self.note_pages(&open, args.offset, size.into());
        if !open.by_kernel && !from_kernels_cache && self.nodes.is_kept_by_kernel(node) {
            // Linux before 6.6 keeps its pages of what goes past them, and may read one anew before the write on any.
            // What is appended begins at the end as it is here, which the kernel may not know.
            let begins = open.file.size().saturating_sub(size.into());
            self.kernel_pages.drop_soon_from(node, args.offset.min(begins));
        }
        Ok(Answer::of(&abi::WriteOut { size, padding: 0 }))
    }

    /// close(2) of a descriptor: the data goes to the store, and then the process's locks end.
    pub(super) async fn flush(&self, node: u64, fh: u64, lock_owner: u64) -> Answered {
        let open = self.file(fh)?;
        let owner = LockOwner(lock_owner);
        let written = match open.file.access().contains(Access::WRITE) {
            true => self.publish(&open.file).await,
            false => {
                if self.may_have_locks(node, owner) {
                    self.write_out(open.file.id()).await;
                }
                Ok(())
            }
        };
        self.unlock(node, owner, LockRange::ALL).await;
        written?;
        Ok(Answer::nothing())
    }

    /// Writes a file's data to the store. Stores of other machines make it durable, as NFS clients do.
    pub(super) async fn publish(&self, file: &File) -> weir_vfs::Result<()> {
        file.close_descriptor_async(!self.fs.store().names_change_here()).await
    }

    /// The last descriptor and mapping of an open file are gone.
    pub(super) async fn release(&self, node: u64, args: &ReleaseIn) -> Answered {
        let owners = self.nodes.lock_owners(node, |owners| owners.of_file(args.fh));
        let mut owners = owners.unwrap_or_default();
        if args.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
            owners.push(flock_owner(args.lock_owner));
        }
        if !owners.is_empty()
            && let Ok(open) = self.file(args.fh)
        {
            self.write_out(open.file.id()).await;
        }
        for owner in owners {
            self.unlock(node, owner, LockRange::ALL).await;
        }
        self.close(args.fh).await;
        Ok(Answer::nothing())
    }

    pub(super) async fn fsync(&self, fh: u64, data_only: bool) -> Answered {
        self.file(fh)?.file.sync_async(data_only).await?;
        Ok(Answer::nothing())
    }

    pub(super) async fn fallocate(&self, node: u64, args: &FallocateIn) -> Answered {
        let open = self.file(args.fh)?;
        let file = &open.file;
        let FallocateIn { offset, length, .. } = *args;
        let end = offset.checked_add(length).ok_or(Errno(libc::EFBIG))?;
        let mode = args.mode.cast_signed();
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if !keep => file.allocate_async(offset, length).await?,
            // Reserved space behind the end is not something that every store has.
            0 if end <= file.getattr().await?.size => file.allocate_async(offset, length).await?,
            libc::FALLOC_FL_PUNCH_HOLE if keep => file.punch_hole_async(offset, length).await?,
            libc::FALLOC_FL_ZERO_RANGE => {
                let size = file.getattr().await?.size;
                let length = if keep { end.min(size).saturating_sub(offset) } else { length };
                if length > 0 {
                    let reserve = file.capabilities().contains(Capabilities::ALLOCATE);
                    file.zero_range_async(offset, length, reserve).await?;
                }
            }
            _ => return Err(Error::NotSupported.into()),
        }
        self.kill_set_ids(self.nodes.file(node)?).await?;
        // The kernel asks again for the size and the blocks.
        self.drop_attributes(node);
        Ok(Answer::nothing())
    }

    /// SEEK_DATA and SEEK_HOLE.
    pub(super) async fn lseek(&self, args: &LseekIn) -> Answered {
        let open = self.file(args.fh)?;
        let wanted = match args.whence.cast_signed() {
            libc::SEEK_DATA => SegmentKind::Data,
            libc::SEEK_HOLE => SegmentKind::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let may_be_mapped = || self.nodes.may_be_mapped_for_writing(open.node);
        let (mut at, mut has_all) = (args.offset, false);
        loop {
            match open.file.extent_at_async(at).await {
                // What programs have stored there through mappings is not here: the kernel does not write it out for
                // this request.
                Ok(extent) if extent.kind == SegmentKind::Hole && !has_all && may_be_mapped() => {
                    let Ok(_room) = self.seek_drops.try_acquire() else {
                        // It is right to read a hole as data.
                        if wanted == SegmentKind::Hole {
                            at = open.file.size().max(at);
                        }
                        break;
                    };
                    self.kernel_pages.drop_now_from(open.node, at).await;
                    has_all = true;
                }
                Ok(extent) if extent.kind == wanted => break,
                Ok(extent) => at = extent.end,
                // A hole follows the last byte.
                Err(Error::NoSuchRange) if wanted == SegmentKind::Hole && at > args.offset => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Answer::of(&abi::LseekOut { offset: at }))
    }

    /// copy_file_range(2): shares the range if the store can, else has the store copy it.
    pub(super) async fn copy_file_range(
        &self,
        args: &abi::CopyFileRangeIn,
        long_count: bool,
    ) -> Answered {
        let (from, to) = (self.file(args.fh_in)?, self.file(args.fh_out)?);
        let size = from.file.getattr().await?.size;
        let most = if long_count { i64::MAX as u64 } else { u64::from(!4095_u32) };
        let len = args.len.min(size.saturating_sub(args.off_in)).min(most);
        if len == 0 {
            return Ok(copied(0, long_count));
        }
        let can = to.file.capabilities();
        if !can.intersects(Capabilities::CLONE | Capabilities::COPY) {
            // The kernel copies by reading and writing then.
            return Err(Error::NotSupported.into());
        }
        // No flag of the request says whether to: as with fallocate(2).
        self.kill_set_ids(to.file.id()).await?;
        let (at, to_at) = (args.off_in, args.off_out);
        if can.contains(Capabilities::CLONE)
            && is_sharable(&to.file.getattr().await?, size, (at, len, to_at))
        {
            // A loss is reported, and not taken for a store that does not share.
            let losses = || (from.file.write_errors(), to.file.write_errors());
            let before = losses();
            from.file.write_back_async().await?;
            to.file.write_back_async().await?;
            match to.file.clone_range_async(&from.file, at, len, to_at).await {
                Ok(()) => {
                    self.drop_attributes(args.nodeid_out);
                    return Ok(copied(len, long_count));
                }
                Err(error) if losses() != before => return Err(error.into()),
                // As in the kernel, what cannot be shared is copied.
                Err(_) => {}
            }
        }
        if !can.contains(Capabilities::COPY) {
            // The kernel copies by reading and writing then.
            return Err(Error::NotSupported.into());
        }
        let done = to.file.copy_range_async(&from.file, at, len, to_at).await?;
        self.drop_attributes(args.nodeid_out);
        Ok(copied(done, long_count))
    }
}

/// The reply to a copy of `bytes` bytes.
fn copied(bytes: u64, long_count: bool) -> Answer {
    match long_count {
        true => Answer::of(&abi::CopyFileRangeOut { bytes_copied: bytes }),
        false => Answer::of(&abi::WriteOut { size: bytes as u32, padding: 0 }),
    }
}

/// Shared ranges begin at multiples of a block, and end there or at both files' ends.
fn is_sharable(to: &Attr, size: u64, (at, len, to_at): (u64, u64, u64)) -> bool {
    const BLOCK: u64 = 4096;
    let whole =
        len.is_multiple_of(BLOCK) || (at + len == size && to_at.saturating_add(len) >= to.size);
    at.is_multiple_of(BLOCK) && to_at.is_multiple_of(BLOCK) && whole
}
