//! An open file as the page cache uses it.

use crate::detail;
use crate::files::change_spans::is_time_stamp;
use crate::files::lock_owners::LockOwners;
use crate::files::opened::Opened;
use crate::fs::NfsFs;
use crate::fs::mount_state::Mount;
use crate::io::read;
use crate::io::write::Writes;
use crate::locks;
use crate::protocol::{ChangeSpan, Handle, OpenContext, Protocol};
use async_trait::async_trait;
use std::future::Future;
use std::sync::Arc;
use weir_vfs::{
    Access, Attr, Error, Extent, FileId, KeptAttributes, Lock, LockOwner, LockRange, OpenFile,
    ReadOp, Result, SegmentKind, SetAttr, WriteOp,
};

impl NfsFs {
    /// A file that `open` opens at the server, by its handle, for this access.
    pub(super) async fn open_by<F, Fut>(
        &self,
        id: FileId,
        access: Access,
        open: F,
    ) -> Result<Arc<dyn OpenFile>>
    where
        F: FnOnce(Arc<dyn Protocol>, Handle) -> Fut + Send + 'static,
        Fut: Future<Output = crate::Result<OpenContext>> + Send + 'static,
    {
        let handle = self.handle(id)?;
        let runtime = self.mount.runtime.handle()?.clone();
        let opened = self
            .mount
            .run(move |state| async move {
                let open = open(Arc::clone(&state.protocol), handle.clone()).await?;
                let timed = KeptAttributes::Timed;
                state.attributes.forget_kept(&*state.protocol, (id, &handle), timed);
                // Created here, so that an open whose caller is gone is closed again.
                let changes = state.open_files.opened(id, &handle);
                let open_files = Arc::clone(&state.open_files);
                let protocol = Arc::clone(&state.protocol);
                let attributes = Arc::clone(&state.attributes);
                Ok(Opened {
                    protocol,
                    runtime,
                    open,
                    access,
                    id,
                    open_files,
                    attributes,
                    changes,
                    owners: LockOwners::new(),
                    deferred: Arc::clone(&state.deferred),
                })
            })
            .await?;
        Ok(Arc::new(NfsFile::new(Arc::clone(&self.mount), opened)))
    }
}

/// A regular file over NFS.
pub(crate) struct NfsFile {
    pub(crate) opened: Arc<Opened>,
    writes: Arc<Writes>,
    /// Keeps the mount alive; dropped last.
    pub(crate) mount: Arc<Mount>,
}

impl NfsFile {
    pub(crate) fn new(mount: Arc<Mount>, opened: Opened) -> Self {
        let opened = Arc::new(opened);
        Self { writes: Writes::new(Arc::clone(&opened)), opened, mount }
    }

    /// Runs an operation that changes the file.
    async fn changing<F, Fut>(&self, operation: F) -> Result<()>
    where
        F: FnOnce(Arc<Opened>) -> Fut + Send,
        Fut: Future<Output = crate::Result<ChangeSpan>> + Send + 'static,
    {
        self.changing_to(|opened| {
            let operation = operation(opened);
            async move { operation.await.map(|span| ((), span)) }
        })
        .await
    }

    /// The same for an operation with a result.
    async fn changing_to<T, F, Fut>(&self, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Opened>) -> Fut + Send,
        Fut: Future<Output = crate::Result<(T, ChangeSpan)>> + Send + 'static,
    {
        self.need(Access::WRITE)?;
        let opened = &self.opened;
        opened.attributes.forget(opened.id);
        let (changed, operation) = (Arc::clone(opened), operation(Arc::clone(opened)));
        let outcome = self
            .mount
            .run(|_| async move {
                let change = changed.changes.begin();
                let (result, span) = operation.await?;
                change.done(span);
                Ok(result)
            })
            .await;
        opened.attributes.forget(opened.id);
        outcome
    }

    /// The other end of a clone or copy to this file.
    fn source(&self, from: &dyn OpenFile) -> Result<Arc<Opened>> {
        let from = from.as_any().downcast_ref::<Self>().ok_or(Error::CrossDevice)?;
        if !Arc::ptr_eq(&from.mount, &self.mount) {
            return Err(Error::CrossDevice);
        }
        from.need(Access::READ)?;
        Ok(Arc::clone(&from.opened))
    }

    /// Commits what any client has written to the file.
    pub(crate) async fn commit(&self) -> Result<()> {
        self.changing(|opened| async move {
            opened.protocol.commit(&opened.open).await.map(|(_, span)| span)
        })
        .await
    }

    fn need(&self, access: Access) -> Result<()> {
        if self.opened.access.contains(access) { Ok(()) } else { Err(Error::BadFile) }
    }
}

/// Has the server make durable what any client has written to a file before, one that was killed before
/// its COMMIT, say. The file is open to be written; nothing is done for a file of another store.
///
/// # Errors
/// Those of the server.
pub async fn commit(file: &dyn OpenFile) -> Result<()> {
    match file.as_any().downcast_ref::<NfsFile>() {
        Some(file) => file.commit().await,
        None => Ok(()),
    }
}

#[async_trait]
impl OpenFile for NfsFile {
    fn access(&self) -> Access {
        self.opened.access
    }

    async fn getattr(&self) -> Result<Attr> {
        let opened = Arc::clone(&self.opened);
        self.mount
            .run(|_| async move {
                let OpenContext { cred, handle, .. } = &opened.open;
                let ask = async {
                    let question = opened.changes.ask();
                    let attr = opened.protocol.getattr(cred, handle).await?;
                    opened.changes.answered(question, attr.change);
                    Ok(attr)
                };
                let which = (opened.id, handle);
                opened.attributes.get_or_ask(&*opened.protocol, which, ask).await
            })
            .await
    }

    fn forget_attributes(&self, which: KeptAttributes) {
        let Opened { protocol, open, attributes, id, .. } = &*self.opened;
        attributes.forget_kept(&**protocol, (*id, &open.handle), which);
    }

    fn changes_by_others(&self) -> Option<u64> {
        self.opened.changes.by_others()
    }

    /// Under a delegation there are no changes that the clock could hide, but in the tick of its grant, which is not
    /// looked for.
    fn change_is_exact(&self, attr: &Attr) -> bool {
        let OpenContext { handle, .. } = &self.opened.open;
        !is_time_stamp(attr.change, attr.ctime) || self.opened.protocol.grant(handle).is_some()
    }

    fn submit_read(&self, op: ReadOp) {
        match self.need(Access::READ) {
            Ok(()) => {
                let reading = read::run(Arc::clone(&self.opened), op, detail::current());
                drop(self.opened.runtime.spawn(reading));
            }
            Err(error) => op.complete(Err(error)),
        }
    }

    fn submit_write(&self, op: WriteOp) {
        match self.need(Access::WRITE) {
            Ok(()) => self.writes.submit(op),
            Err(error) => op.complete(Err(error)),
        }
    }

    /// Completed writes were made durable with COMMIT, and servers make changes of attributes
    /// durable before they answer (RFC 8881 section 18.30), so there is nothing to wait for.
    async fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    async fn set_size(&self, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.changing(|opened| async move {
            let OpenContext { cred, handle, .. } = &opened.open;
            let set = opened.protocol.setattr(cred, handle, Some(&opened.open), &set);
            set.await.map(|(_, span)| span)
        })
        .await
    }

    async fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.changing(|opened| async move {
            opened.protocol.punch_hole(&opened.open, offset, len).await
        })
        .await
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.changing(
            |opened| async move { opened.protocol.allocate(&opened.open, offset, len).await },
        )
        .await
    }

    async fn extent_at(&self, offset: u64) -> Result<Extent> {
        let opened = Arc::clone(&self.opened);
        let found = self
            .mount
            .run(|_| async move { opened.protocol.extent_at(&opened.open, offset).await })
            .await;
        match found {
            Err(Error::NotSupported) => {
                let size = self.getattr().await?.size;
                let extent = Extent { kind: SegmentKind::Data, start: offset, end: size };
                if extent.is_empty() { Err(Error::NoSuchRange) } else { Ok(extent) }
            }
            found => found,
        }
    }

    async fn clone_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<()> {
        let from = self.source(from)?;
        self.changing(|to| async move {
            to.protocol.clone_range(&from.open, &to.open, offset, len, to_offset).await
        })
        .await
    }

    async fn copy_range(
        &self,
        from: &dyn OpenFile,
        offset: u64,
        len: u64,
        to_offset: u64,
    ) -> Result<u64> {
        let from = self.source(from)?;
        self.changing_to(|to| async move {
            to.protocol.copy_range(&from.open, &to.open, offset, len, to_offset).await
        })
        .await
    }

    async fn lock(&self, owner: LockOwner, lock: Lock, wait: bool) -> Result<()> {
        self.need(if lock.exclusive { Access::WRITE } else { Access::READ })?;
        let mut waiting =
            wait.then(|| locks::WaitingRequest::begin(Arc::clone(&self.opened), owner, lock));
        let caller = Arc::new(());
        loop {
            let (opened, caller) = (Arc::clone(&self.opened), Arc::downgrade(&caller));
            let request = move |_| locks::request(opened, owner, lock, wait, caller);
            let granted = self.mount.run(request).await?;
            match (granted, &mut waiting) {
                (Some(granted), waiting) => {
                    granted.keep();
                    if let Some(waiting) = waiting.take() {
                        waiting.end();
                    }
                    return Ok(());
                }
                (None, None) => return Err(Error::WouldBlock),
                (None, Some(waiting)) => {
                    let pause = waiting.pause();
                    self.mount.run(|_| pause).await?;
                }
            }
        }
    }

    async fn test_lock(&self, owner: LockOwner, lock: Lock) -> Result<Option<Lock>> {
        let opened = Arc::clone(&self.opened);
        let owner = opened.owners.get(owner);
        self.mount
            .run(|_| async move { opened.protocol.test_lock(&opened.open, owner, lock).await })
            .await
    }

    async fn unlock(&self, owner: LockOwner, range: LockRange) -> Result<()> {
        let opened = Arc::clone(&self.opened);
        self.mount.run(move |_| locks::release(opened, owner, range)).await
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
