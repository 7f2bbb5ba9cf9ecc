//! A caller as its credential names it.

use weir_rpc::{AuthFlavor, AuthStatus, OpaqueAuth};
use weir_vfs::Cred;

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
