//! A request's way to its operation, and the answer's way back.

use crate::mounted::file_system::{Answer, Answered, Mounted};
use crate::mounted::files;
use crate::session::buffers::Payload;
use crate::session::counters::Begun;
use crate::session::pending::Reply;
use crate::wire::abi::ForgetOne;
use crate::wire::reply::Errno;
use crate::wire::request::{Op, Request, Requester};
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// Pauses while the store cannot find a file that has moved, and for how long to ask.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_SEARCH: Duration = Duration::from_secs(60);

impl Mounted {
    /// Carries out a request, and answers it.
    pub(crate) async fn serve(
        &self,
        request: Request,
        data: Option<Payload>,
        reply: Reply,
        begun: Begun,
    ) {
        if !request.op.has_reply() {
            return;
        }
        match self.carry_out(&request, data.as_deref(), &reply).await {
            Err(errno) => {
                self.counters.failed(&begun);
                if reply.fail(errno).is_err() {
                    self.drop_what_may_have_changed(&request);
                }
            }
            Ok(answer) => {
                let (sent, bytes) = match &answer.data {
                    Some((segments, offset, len)) => {
                        let slices = files::slices(segments, *offset, *len);
                        let bytes = slices.iter().map(|slice| slice.len()).sum();
                        (reply.send(&slices), bytes)
                    }
                    None if answer.bytes.is_empty() => (reply.send(&[]), 0),
                    None => (reply.send(&[IoSlice::new(&answer.bytes)]), answer.bytes.len()),
                };
                if sent.is_err() {
                    self.nodes.forget_change(request.node);
                    self.take_back(answer).await;
                    self.drop_what_may_have_changed(&request);
                } else if let Some(granted) = answer.lock {
                    self.keep_lock(granted).await;
                }
                self.counters.done(&begun, bytes);
            }
        }
    }

    /// Undoes what an answer would have handed over.
    async fn take_back(&self, answer: Answer) {
        if let Some(granted) = answer.lock {
            self.take_back_lock(granted).await;
        }
        // The file first: what it leaves to do is noted at its node.
        if let Some(fh) = answer.file {
            self.close(fh).await;
        }
        answer.nodes.iter().for_each(|&node| self.nodes.forget_change(node));
        let forgotten: Vec<_> =
            answer.nodes.iter().map(|&nodeid| ForgetOne { nodeid, nlookup: 1 }).collect();
        self.nodes.forget(&forgotten);
        if let Some(fh) = answer.directory {
            self.directories.remove(fh as usize);
        }
    }

    /// Makes the kernel drop the names, attributes and pages of what a request may have changed. The kernel
    /// does so when the request fails, but the operation of a killed program goes on after that.
    fn drop_what_may_have_changed(&self, request: &Request) {
        let node = request.node;
        match &request.op {
            Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Create(..) => self.drop_attributes(node),
            Op::Rename { newdir: other, .. } | Op::Link { oldnode: other, .. } => {
                self.drop_attributes(node);
                self.drop_attributes(*other);
            }
            Op::Setxattr { .. } | Op::Removexattr { .. } => return self.drop_attributes(node),
            Op::Setattr(_) | Op::Write { .. } | Op::Fallocate(_) => {
                return self.kernel_pages.drop_soon(node);
            }
            Op::CopyFileRange { args, .. } => return self.kernel_pages.drop_soon(args.nodeid_out),
            _ => return,
        }
        self.drop_names();
    }

    /// Carries out a request; again, after a pause, as long as the store cannot find a file that has moved:
    /// system calls about names do not return EAGAIN.
    async fn carry_out(&self, request: &Request, data: Option<&[u8]>, reply: &Reply) -> Answered {
        // What these have done must not be done twice; a lock that is denied is an answer; a loss of data is reported
        // to an open file once, so a second attempt would succeed.
        let once = matches!(
            request.op,
            Op::Setlk { .. }
                | Op::Write { .. }
                | Op::Fallocate(_)
                | Op::CopyFileRange { .. }
                | Op::Flush { .. }
                | Op::Fsync { .. }
                | Op::Syncfs
        );
        let until = Instant::now() + LONGEST_SEARCH;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let answered = self.attempt(request, data, reply).await;
            let is_moving = matches!(answered, Err(Errno(libc::EAGAIN)));
            if once || !is_moving || reply.is_answered() || Instant::now() >= until {
                return answered;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(&self, request: &Request, data: Option<&[u8]>, reply: &Reply) -> Answered {
        let Request { node, from, ref op, .. } = *request;
        match op {
            Op::Read(args) => self.read(args).await,
            Op::Write { args, .. } => self.write(node, args, data.unwrap_or_default()).await,
            Op::Lookup { name } => self.lookup(from, node, name).await,
            Op::Getattr { fh } => self.getattr(node, *fh).await,
            Op::Setattr(args) => self.setattr(from, node, args).await,
            Op::Readlink => self.readlink(from, node).await,
            Op::Symlink { name, target } => self.symlink(from, node, name, target).await,
            Op::Mknod { mode, rdev, umask, name } => {
                self.mknod(from, node, name, (*mode, *umask), *rdev).await
            }
            Op::Mkdir { mode, umask, name } => self.mkdir(from, node, name, (*mode, *umask)).await,
            Op::Unlink { name } => self.unlink(from, node, name).await,
            Op::Rmdir { name } => self.rmdir(from, node, name).await,
            Op::Rename { name, newdir, newname, flags } => {
                self.rename(from, (node, name), (*newdir, newname), *flags).await
            }
            Op::Link { oldnode, name } => self.link(from, *oldnode, node, name).await,
            Op::Open(args) => self.open(from, node, args).await,
            Op::Tmpfile(args) => self.tmpfile(from, node, args).await,
            Op::Create(args, name) => self.create(from, node, name, args).await,
            Op::Flush { fh, lock_owner } => self.flush(node, *fh, *lock_owner).await,
            Op::Release(args) => self.release(node, args).await,
            Op::Fsync { fh, data_only } => self.fsync(*fh, *data_only).await,
            Op::Fallocate(args) => self.fallocate(node, args).await,
            Op::Lseek(args) => self.lseek(args).await,
            Op::CopyFileRange { args, long_count } => self.copy_file_range(args, *long_count).await,
            Op::Getlk(args) => self.getlk(node, args).await,
            Op::Setlk { args, wait } => self.setlk(node, args, *wait, reply).await,
            other => self.attempt_other(node, from, other).await,
        }
    }

    async fn attempt_other(&self, node: u64, from: Requester, op: &Op) -> Answered {
        match op {
            Op::Opendir => self.opendir(from, node).await,
            Op::Readdir { args, plus } => self.readdir(from, node, args, *plus).await,
            Op::Releasedir { fh } => {
                self.directories.remove(*fh as usize);
                Ok(Answer::nothing())
            }
            Op::Fsyncdir => {
                self.fs.sync_node(self.nodes.file(node)?).await?;
                Ok(Answer::nothing())
            }
            Op::Statfs => self.statfs().await,
            Op::Syncfs => {
                self.fs.cache().flush().await?;
                Ok(Answer::nothing())
            }
            Op::Setxattr { name, value, flags } => {
                self.setxattr(from, node, name, value, *flags).await
            }
            Op::Getxattr { name, size } => self.getxattr(from, node, name, *size).await,
            Op::Listxattr { size } => self.listxattr(from, node, *size).await,
            Op::Removexattr { name } => self.removexattr(from, node, name).await,
            Op::Access { mask } => self.access(from, node, *mask).await,
            _ => Err(Errno::NO_SYSTEM_CALL),
        }
    }
}
