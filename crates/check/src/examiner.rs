//! The clients of one examination, its directory on the server, and the files created there.

use crate::Options;
use crate::compare::judge;
use crate::raw_open::{RawClient, unexpected};
use crate::raw40::{Answer, Raw40};
use crate::verdict::{Result, Verdict};
use std::sync::Arc;
use weir_client::{NfsFs, NfsUrl, raw};
use weir_nfs::v4::Op;
use weir_nfs::v4::op::create_session;
use weir_nfs::v4::op::read_plus::ReadPlus;
use weir_nfs::v4::types::StateId;
use weir_vfs::{
    Access, Caller, CreateMode, Error, FileId, FileSystem, OpenFile, SetAttr, Source, SpecialFile,
    WriteOp,
};

/// One examination of a server.
pub(crate) struct Examiner {
    /// The first client; `theirs` is the second.
    pub(crate) ours: Arc<NfsFs>,
    pub(crate) theirs: Arc<NfsFs>,
    url: NfsUrl,
    options: Options,
    raw: Option<RawClient>,
    v40: Option<Raw40>,
    /// The name of the directory, in the root of the mounts.
    name: Vec<u8>,
    pub(crate) dir: FileId,
    made: Vec<Made>,
    /// Counter for file names.
    files: usize,
    /// A directory of many files, created once. The results of the lease tests, which run once,
    /// follow.
    pub(crate) many: Option<FileId>,
    pub(crate) silence: Option<Silence>,
    pub(crate) revocation: Option<Revocation>,
    /// It was asked for delegations long enough, and grants none for writing.
    pub(crate) delegates_nothing: bool,
}

/// The results for a client that stopped renewing its lease, and for one that did not.
pub(crate) struct Silence {
    pub(crate) in_the_way: Verdict,
    pub(crate) kept: Verdict,
    pub(crate) stateid: Verdict,
    pub(crate) given_back: Verdict,
    pub(crate) v40: Silence40,
}

/// The results for a version 4.0 client that lost its lease.
pub(crate) struct Silence40 {
    pub(crate) renew: Verdict,
    pub(crate) stateids: Verdict,
    pub(crate) open: Verdict,
}

/// The results for a delegation that its client did not return.
#[derive(Clone)]
pub(crate) struct Revocation {
    pub(crate) granted: Verdict,
    pub(crate) told: Verdict,
    pub(crate) refused: Verdict,
    pub(crate) tested: Verdict,
    pub(crate) freed: Verdict,
}

/// A name to remove at the end.
struct Made {
    dir: FileId,
    name: Vec<u8>,
    is_dir: bool,
}

/// An open file and its expected contents.
pub(crate) struct Known {
    pub(crate) name: Vec<u8>,
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) bytes: Vec<u8>,
}

impl Examiner {
    pub(crate) async fn begin(url: &NfsUrl, options: &Options) -> weir_client::Result<Self> {
        let mut url = url.clone();
        // Appended last, so that it overrides the URL: the rules are those of this version.
        url.query = format!("{}&vers=4.2", url.query);
        let ours = NfsFs::mount(&url, &options.mount).await?;
        let name = format!("weir-check-{:016x}", getrandom::u64().unwrap_or(0)).into_bytes();
        let begun = async {
            let theirs = NfsFs::mount(&url, &options.mount).await?;
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            match ours.mkdir(&Caller::Own, ours.root().entry(&name).with(&set)).await {
                Ok(made) => Ok((theirs, made.id)),
                Err(error) => {
                    theirs.unmount().await;
                    Err(error.into())
                }
            }
        };
        match begun.await {
            Ok((theirs, dir)) => Ok(Self {
                made: vec![Made { dir: ours.root(), name: name.clone(), is_dir: true }],
                ours,
                theirs,
                url,
                options: options.clone(),
                raw: None,
                v40: None,
                name,
                dir,
                files: 0,
                many: None,
                silence: None,
                revocation: None,
                delegates_nothing: false,
            }),
            Err(error) => {
                ours.unmount().await;
                Err(error)
            }
        }
    }

    /// Removes the created files, and ends the clients. That the files can be removed is a rule,
    /// too.
    pub(crate) async fn end(&mut self) -> Verdict {
        if let Some(raw) = self.raw.take() {
            raw.end().await;
        }
        let mut removed = Ok(());
        for Made { dir, name, is_dir } in std::mem::take(&mut self.made).into_iter().rev() {
            let outcome = match is_dir {
                true => self.ours.rmdir(&Caller::Own, dir.entry(&name)).await,
                false => self.ours.unlink(&Caller::Own, dir.entry(&name)).await,
            };
            // A test may have removed the name, or failed before it created it.
            removed = removed.and(outcome.or_else(|error| match error {
                Error::NotFound => Ok(()),
                error => Err(error),
            }));
        }
        self.theirs.unmount().await;
        self.ours.unmount().await;
        removed.map_or_else(|error| Verdict::Fail(error.to_string()), |()| Verdict::Pass)
    }

    /// Mounts another client.
    pub(crate) async fn another(&self) -> weir_client::Result<Arc<NfsFs>> {
        NfsFs::mount(&self.url, &self.options.mount).await
    }

    /// Opens a connection for compounds of a minor version, outside any session.
    pub(crate) async fn connection(&self, minor: u32) -> weir_client::Result<raw::Connection> {
        raw::Connection::open(&self.url, &self.options.mount, minor).await
    }

    /// The path from the server's root to the directory.
    pub(crate) fn path(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.url.path.iter().chain([&self.name])
    }

    /// The client for raw compounds.
    pub(crate) async fn raw(&mut self) -> Result<&RawClient> {
        let raw = match self.raw.take() {
            // Its lease may have expired during a slow rule of another client.
            Some(raw) if raw.call(&[]).await.is_ok() => raw,
            _ => self.another_raw(|_| {}).await?,
        };
        Ok(self.raw.insert(raw))
    }

    /// Another client for raw compounds, with changed CREATE_SESSION arguments.
    pub(crate) async fn another_raw(
        &self,
        change: impl FnOnce(&mut create_session::Args),
    ) -> Result<RawClient> {
        let connection = self.connection(2).await?;
        let session = raw::Session::begin_as(connection, raw::new_client(), change).await?;
        RawClient::begin(session, self.path()).await
    }

    /// The client of version 4.0.
    pub(crate) async fn v40(&mut self) -> Result<&Raw40> {
        let client = match self.v40.take() {
            Some(client) if client.call(&[Op::Renew(client.id)]).await?.status.is_ok() => client,
            _ => {
                self.another_v40().await?.map_err(|error| unexpected("SETCLIENTID", Err(error)))?
            }
        };
        Ok(self.v40.insert(client))
    }

    /// Another client of version 4.0, or the server's error if it does not serve the version.
    pub(crate) async fn another_v40(&self) -> Result<Answer<Raw40>> {
        Raw40::begin(self.connection(0).await?, self.path()).await
    }

    /// An unused name in the directory. A file created under the name is removed at the end.
    pub(crate) fn new_name(&mut self, purpose: &str) -> Vec<u8> {
        self.files += 1;
        let name = format!("{purpose}-{}", self.files).into_bytes();
        self.made.push(Made { dir: self.dir, name: name.clone(), is_dir: false });
        name
    }

    /// An unused name for a directory.
    pub(crate) fn new_dir_name(&mut self, purpose: &str) -> Vec<u8> {
        let name = self.new_name(purpose);
        if let Some(made) = self.made.last_mut() {
            made.is_dir = true;
        }
        name
    }

    /// Creates an empty file under a name from [`new_name`](Self::new_name).
    pub(crate) async fn create_as(&self, name: &[u8]) -> Result<FileId> {
        self.create_in(self.dir, name).await
    }

    /// Creates an empty file.
    pub(crate) async fn create(&mut self, purpose: &str) -> Result<(FileId, Vec<u8>)> {
        let name = self.new_name(purpose);
        self.create_in(self.dir, &name).await.map(|id| (id, name))
    }

    async fn create_in(&self, dir: FileId, name: &[u8]) -> Result<FileId> {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        Ok(self
            .ours
            .create(&Caller::Own, dir.entry(name).with(&set), CreateMode::MustBeNew)
            .await?
            .attr
            .id)
    }

    /// Creates an empty directory.
    pub(crate) async fn make_dir(&mut self, purpose: &str) -> Result<(FileId, Vec<u8>)> {
        let name = self.new_dir_name(purpose);
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let made = self.ours.mkdir(&Caller::Own, self.dir.entry(&name).with(&set)).await?;
        Ok((made.id, name))
    }

    /// Creates a pipe or a socket. Not every server supports this.
    pub(crate) async fn make_special(&mut self, node: SpecialFile) -> weir_vfs::Result<Vec<u8>> {
        let name = self.new_name("special");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        self.ours.mknod(&Caller::Own, self.dir.entry(&name).with(&set), node).await?;
        Ok(name)
    }

    /// Creates an empty file in a directory of the examination.
    pub(crate) async fn fill(&mut self, dir: FileId, name: &[u8]) -> Result<()> {
        self.create_in(dir, name).await?;
        self.made.push(Made { dir, name: name.to_vec(), is_dir: false });
        Ok(())
    }

    /// Creates a file of data (`true`) and holes of the given lengths.
    pub(crate) async fn make(&mut self, purpose: &str, layout: &[(bool, usize)]) -> Result<Known> {
        let (id, name) = self.create(purpose).await?;
        let file = self.ours.open(&Caller::Own, id, Access::READ | Access::WRITE).await?;
        let mut known = Known { name, file, bytes: Vec::new() };
        let size: usize = layout.iter().map(|(_, len)| len).sum();
        known.file.set_size(size as u64).await?;
        known.bytes.resize(size, 0);
        let mut at = 0;
        for &(data, len) in layout {
            if data {
                // No byte is zero, and neighbouring pages differ.
                let bytes = (at..at + len).map(|i| (i / 509 + i) as u8 | 1).collect::<Vec<_>>();
                known.write(at, &bytes).await?;
            }
            at += len;
        }
        Ok(known)
    }

    /// Opens a file for reading and writing through another client.
    pub(crate) async fn opened_by(&self, nfs: &NfsFs, name: &[u8]) -> Result<Known> {
        let dir = nfs.lookup(&Caller::Own, nfs.root().entry(&self.name)).await?.id;
        let id = nfs.lookup(&Caller::Own, dir.entry(name)).await?.id;
        let file = nfs.open(&Caller::Own, id, Access::READ | Access::WRITE).await?;
        Ok(Known { name: name.to_vec(), file, bytes: Vec::new() })
    }
}

impl Known {
    pub(crate) async fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.write_bytes(at, bytes).await?;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) async fn write_bytes(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let done = move |_: Box<dyn Source>, result| {
            // The caller may have been dropped.
            let _ = tx.send(result);
        };
        self.file.submit_write(WriteOp::new(at as u64, Box::new(bytes.to_vec()), done));
        Ok(rx.await.unwrap_or(Err(Error::Io))?)
    }

    pub(crate) async fn read_plus(&self, offset: u64, count: u64) -> weir_client::Result<ReadPlus> {
        raw::read_plus(&*self.file, offset, count.min(u32::MAX.into()) as u32).await
    }

    /// Reads, and compares the reply with the file. Returns the offset at which the reply ends.
    pub(crate) async fn judged(&self, offset: u64, count: u64) -> std::result::Result<u64, String> {
        let asked = |fault: String| format!("{count} bytes at {offset}: {fault}");
        let reply = self.read_plus(offset, count).await.map_err(|e| asked(e.to_string()))?;
        judge(&reply, &self.bytes, offset, count).map_err(asked)
    }

    pub(crate) fn stateid(&self) -> weir_client::Result<StateId> {
        raw::stateid(&*self.file)
    }

    /// Reads with a stateid. The server must accept it, or refuse it with one of the errors in
    /// `refused`.
    pub(crate) async fn read_under(&self, stateid: StateId, refused: Option<&[&str]>) -> Verdict {
        match (raw::read_under(&*self.file, stateid).await, refused) {
            (Ok(()), None) => Verdict::Pass,
            (Ok(()), Some(_)) => Verdict::Fail("it was accepted".into()),
            (Err(error), Some(expected)) => {
                let text = error.to_string();
                match expected.iter().any(|status| text.contains(status)) {
                    true => Verdict::Pass,
                    false => Verdict::Note(format!("{text}, not {}", expected[0])),
                }
            }
            (Err(error), None) => Verdict::Fail(error.to_string()),
        }
    }
}
