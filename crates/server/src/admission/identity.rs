//! The caller that a credential names.

use weir_rpc::{AuthFlavor, AuthStatus, OpaqueAuth};
use weir_vfs::Cred;

/// A caller before the export's squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User and groups; `None` for AUTH_NONE.
    pub cred: Option<Cred>,
}

impl Identity {
    /// Reads a credential.
    ///
    /// # Errors
    /// The credential is malformed, or its flavor is not supported.
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
