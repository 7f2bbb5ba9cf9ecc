//! What is exported, and as whom its clients act.

use crate::changes::Changes;
use crate::handle::{HANDLE_BYTES, Handles, Node};
use weir_pagecache::{CachedFs, File};
use weir_rpc::{AuthFlavor, AuthStatus, OpaqueAuth};
use weir_vfs::{Access, Caller, Cred, Error, FileId, Result};

/// Whose identities are not taken as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User and group 0 become anonymous.
    #[default]
    Root,
    /// Everybody becomes anonymous.
    All,
    /// Nobody is changed.
    Nobody,
}

/// How clients may use an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Nothing may be changed.
    pub read_only: bool,
    /// Whose identities are changed.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// The anonymous group.
    pub anon_gid: u32,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { read_only: false, squash: Squash::Root, anon_uid: 65534, anon_gid: 65534 }
    }
}

/// A tree that clients may mount.
#[derive(Clone)]
pub struct Export {
    /// The path under which clients mount it.
    pub path: String,
    /// The files.
    pub fs: CachedFs,
    /// How they may be used.
    pub options: ExportOptions,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A caller as it proved itself, before an export's squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User, groups; `None` for AUTH_NONE.
    pub cred: Option<Cred>,
}

impl Identity {
    /// Reads a credential.
    ///
    /// # Errors
    /// It is malformed or of a flavor that is not supported.
    pub fn of(auth: &OpaqueAuth) -> std::result::Result<Self, AuthStatus> {
        match auth.flavor {
            AuthFlavor::NONE => Ok(Self { cred: None }),
            AuthFlavor::SYS => {
                let sys = auth.auth_sys()?;
                let cred = Cred { uid: sys.uid, gid: sys.gid, groups: sys.gids.0 };
                Ok(Self { cred: Some(cred) })
            }
            _ => Err(AuthStatus::TooWeak),
        }
    }
}

impl Export {
    /// The identity under which a caller acts in this export.
    pub fn caller(&self, identity: &Identity) -> Caller {
        let ExportOptions { squash, anon_uid, anon_gid, .. } = self.options;
        let anonymous = || Cred { uid: anon_uid, gid: anon_gid, groups: Vec::new() };
        let mut cred = match &identity.cred {
            Some(cred) if squash != Squash::All => cred.clone(),
            _ => anonymous(),
        };
        if squash == Squash::Root {
            if cred.uid == 0 {
                cred.uid = anon_uid;
            }
            for gid in std::iter::once(&mut cred.gid).chain(&mut cred.groups) {
                if *gid == 0 {
                    *gid = anon_gid;
                }
            }
        }
        Caller::As(cred)
    }

    /// Opens a file for I/O that is not under an open of the protocol's: NFSv3, and the special
    /// stateids. A file's owner may always read and write, since it could open the file before it
    /// took its own permission away (RFC 1813 section 4.4).
    pub async fn open_for_io(&self, caller: &Caller, id: FileId, access: Access) -> Result<File> {
        match self.fs.open(caller, id, access).await {
            Err(Error::AccessDenied) if self.owns(caller, id).await? => {
                self.fs.open(&Caller::Own, id, access).await
            }
            opened => opened,
        }
    }

    async fn owns(&self, caller: &Caller, id: FileId) -> Result<bool> {
        match caller {
            Caller::Own => Ok(true),
            Caller::As(cred) => Ok(self.fs.getattr(id).await?.uid == cred.uid),
        }
    }
}

/// All exports of a server, and their handles.
#[derive(Debug)]
pub struct Exports {
    exports: Vec<Export>,
    handles: Handles,
    changes: Changes,
}

/// Why a handle names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// This server never made it.
    Bad,
    /// What it named is not exported any more.
    Stale,
}

impl Exports {
    /// These exports.
    pub fn new(exports: Vec<Export>, handles: Handles) -> Self {
        Self { exports, handles, changes: Changes::default() }
    }

    /// The locks under which directories are changed.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The exports, by number.
    pub fn all(&self) -> &[Export] {
        &self.exports
    }

    /// The export of a file.
    ///
    /// # Errors
    /// [`HandleError::Stale`].
    pub fn get(&self, export: u16) -> std::result::Result<&Export, HandleError> {
        self.exports.get(usize::from(export)).ok_or(HandleError::Stale)
    }

    /// The handle of a file.
    pub fn seal(&self, node: Node) -> [u8; HANDLE_BYTES] {
        self.handles.seal(node)
    }

    /// What a handle names. The file itself may be gone.
    ///
    /// # Errors
    /// It names nothing.
    pub fn unseal(&self, handle: &[u8]) -> std::result::Result<(Node, &Export), HandleError> {
        let node = self.handles.unseal(handle).ok_or(HandleError::Bad)?;
        Ok((node, self.get(node.export)?))
    }

    /// The root of the tree that clients see.
    pub fn root(&self) -> std::result::Result<Node, HandleError> {
        Ok(Node { export: 0, id: self.get(0)?.fs.root() })
    }
}
