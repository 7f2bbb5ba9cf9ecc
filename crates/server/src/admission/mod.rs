//! Admission: checks the credential of a call against the origin of its connection.
//!
//! AUTH_SYS proves nothing: the client writes any user number it likes. What the server can verify
//! is which port the client bound, and, for a program on this machine, which user owns its socket.
//!
//! 1. With `secure`, the server accepts any AUTH_SYS credential from a port that only a superuser
//!    may bind (exports(5), `secure`), and from a local socket that the superuser owns.
//! 2. A local socket of another user may only claim that user, with the groups that the user has on
//!    this machine. A server that does not run as root acts as its own user for every caller, so of
//!    local sockets it accepts only its own user's and the superuser's.
//! 3. Everything else is refused with AUTH_TOOWEAK before any program allocates state for the peer.
//!
//! The shares of the server's limits are counted by address (`address`, `quota`).
//!
//! - `groups`: the groups of users on this machine.
//! - `identity`: the caller. `origin`: where a connection comes from. `socket_owner`: which user
//!   owns a socket.

mod address;
mod descriptors;
mod groups;
mod identity;
mod origin;
mod quota;
mod socket_owner;

pub(crate) use address::{
    AddressShares, Addresses, ClientCharge, LimitUse, Refusals, SharedLimits, host,
};
pub(crate) use descriptors::Descriptors;
pub use descriptors::directory_descriptors;
pub use identity::Identity;
pub(crate) use origin::Origin;
pub(crate) use quota::{Quota, Share, Taken, allowance, fair_share};
pub(crate) use socket_owner::unacknowledged_bytes;

use groups::Groups;
use origin::Locality;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_rpc::{AuthStatus, OpaqueAuth};
use weir_vfs::Cred;

/// Which credentials the server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Accept only credentials that the origin of the call supports: from privileged ports, and
    /// from local sockets according to their owner. Without this, any client may claim to be any
    /// user.
    pub secure: bool,
    /// Accept calls without a credential (AUTH_NONE), as the anonymous user.
    pub auth_none: bool,
    /// Look up a user's groups on this machine instead of taking them from the credential, which
    /// holds at most 16.
    pub manage_gids: bool,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self { secure: true, auth_none: true, manage_gids: false }
    }
}

/// Which users a caller may claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Any user.
    Any,
    /// This user.
    Only(u32),
    /// None: the call is refused.
    Nothing,
}

/// Decides which calls the server executes.
#[derive(Debug)]
pub(crate) struct Admission {
    secure: AtomicBool,
    auth_none: AtomicBool,
    manage_gids: AtomicBool,
    /// The user that the server runs as.
    own_uid: u32,
    groups: Groups,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(AdmissionOptions::default(), rustix::process::geteuid().as_raw())
    }
}

impl Admission {
    /// Admission for a server that runs as `own_uid`.
    pub(crate) fn new(options: AdmissionOptions, own_uid: u32) -> Self {
        let admission = Self {
            secure: AtomicBool::new(true),
            auth_none: AtomicBool::new(true),
            manage_gids: AtomicBool::new(false),
            own_uid,
            groups: Groups::default(),
        };
        admission.set(options);
        admission
    }

    /// Applies these options from the next call on.
    pub(crate) fn set(&self, options: AdmissionOptions) {
        let AdmissionOptions { secure, auth_none, manage_gids } = options;
        self.secure.store(secure, Ordering::Relaxed);
        self.auth_none.store(auth_none, Ordering::Relaxed);
        self.manage_gids.store(manage_gids, Ordering::Relaxed);
    }

    /// Whether the server accepts AUTH_NONE.
    pub(crate) fn takes_auth_none(&self) -> bool {
        self.auth_none.load(Ordering::Relaxed)
    }

    /// The caller that a credential names.
    ///
    /// # Errors
    /// The credential is malformed, its flavor is not accepted, or the origin does not support it
    /// ([`AuthStatus::TooWeak`]).
    pub(crate) async fn identify(
        &self,
        auth: &OpaqueAuth,
        origin: &Origin,
    ) -> Result<Identity, AuthStatus> {
        let mut identity = Identity::of(auth)?;
        let trust = self.trust(origin);
        let believed = match (&identity.cred, trust) {
            (_, Trust::Nothing) => false,
            (None, _) => self.takes_auth_none(),
            (Some(_), Trust::Any) => true,
            (Some(cred), Trust::Only(owner)) => cred.uid == owner,
        };
        if !believed {
            return Err(AuthStatus::TooWeak);
        }
        if let Some(cred) = &mut identity.cred {
            if trust != Trust::Any {
                self.keep_known_groups(cred).await;
            } else if self.manage_gids.load(Ordering::Relaxed) {
                let known = self.groups.of(cred.uid).await;
                cred.groups = known.all().to_vec();
            }
        }
        Ok(identity)
    }

    fn trust(&self, origin: &Origin) -> Trust {
        let is_root = self.own_uid == 0;
        match origin.locality() {
            _ if !self.secure.load(Ordering::Relaxed) => Trust::Any,
            Locality::Here(Some(0)) => Trust::Any,
            Locality::Here(Some(owner)) if !is_root => {
                if owner == self.own_uid {
                    Trust::Any
                } else {
                    Trust::Nothing
                }
            }
            _ if origin.is_privileged() => Trust::Any,
            Locality::Here(Some(owner)) => Trust::Only(owner),
            Locality::Here(None) | Locality::Elsewhere => Trust::Nothing,
        }
    }

    /// Removes the groups from a credential that its user does not have.
    async fn keep_known_groups(&self, cred: &mut Cred) {
        let known = self.groups.of(cred.uid).await;
        if !known.all().contains(&cred.gid) {
            cred.gid = known.primary();
        }
        cred.groups.retain(|gid| known.all().contains(gid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_rpc::AuthSys;

    /// A user that exists on no system.
    const STRANGER: u32 = 3_999_999_999;

    fn sys(uid: u32, gid: u32, gids: &[u32]) -> OpaqueAuth {
        let gids = gids.to_vec().into();
        OpaqueAuth::from(&AuthSys { uid, gid, gids, ..AuthSys::default() })
    }

    async fn uid(
        own_uid: u32,
        options: AdmissionOptions,
        auth: &OpaqueAuth,
        origin: Origin,
    ) -> Result<Option<u32>, AuthStatus> {
        let admission = Admission::new(options, own_uid);
        let identity = admission.identify(auth, &origin).await;
        identity.map(|identity| identity.cred.map(|cred| cred.uid))
    }

    fn here(owner: Option<u32>) -> Origin {
        Origin::new(Locality::Here(owner), false)
    }

    fn elsewhere(privileged: bool) -> Origin {
        Origin::new(Locality::Elsewhere, privileged)
    }

    #[tokio::test]
    async fn an_unprivileged_server_admits_only_its_user_and_root() {
        let strict = AdmissionOptions::default();
        let asked = |owner| async move { uid(1000, strict, &OpaqueAuth::NONE, here(owner)).await };
        assert_eq!(asked(Some(1000)).await, Ok(None));
        assert_eq!(asked(Some(0)).await, Ok(None));
        assert_eq!(asked(Some(1001)).await, Err(AuthStatus::TooWeak));
        assert_eq!(asked(None).await, Err(AuthStatus::TooWeak), "its owner is not known");
        let claims = sys(1000, 1000, &[]);
        let lies = uid(1000, strict, &claims, here(Some(1001))).await;
        assert_eq!(lies, Err(AuthStatus::TooWeak));
        let bound = Origin::new(Locality::Here(Some(1001)), true);
        let lies = uid(1000, strict, &claims, bound).await;
        assert_eq!(lies, Err(AuthStatus::TooWeak), "a privileged port makes no other user of it");
    }

    #[tokio::test]
    async fn a_root_server_lets_a_local_user_act_only_as_itself() {
        let strict = AdmissionOptions::default();
        let asked = |claimed, owner| async move {
            uid(0, strict, &sys(claimed, 0, &[]), here(owner)).await
        };
        assert_eq!(asked(STRANGER, Some(STRANGER)).await, Ok(Some(STRANGER)));
        assert_eq!(asked(0, Some(STRANGER)).await, Err(AuthStatus::TooWeak));
        assert_eq!(asked(1000, Some(STRANGER)).await, Err(AuthStatus::TooWeak));
        assert_eq!(asked(1000, Some(0)).await, Ok(Some(1000)), "root speaks for everybody");
        assert_eq!(asked(1000, None).await, Err(AuthStatus::TooWeak));
        let bound = Origin::new(Locality::Here(Some(STRANGER)), true);
        assert_eq!(uid(0, strict, &sys(1000, 0, &[]), bound).await, Ok(Some(1000)));
    }

    #[tokio::test]
    async fn a_local_user_has_exactly_the_groups_of_this_machine() {
        let admission = Admission::new(AdmissionOptions::default(), 0);
        let auth = sys(STRANGER, 0, &[0, 42]);
        let identity = admission.identify(&auth, &here(Some(STRANGER))).await.expect("itself");
        let cred = identity.cred.expect("a credential");
        assert_ne!(cred.gid, 0, "nor as its first group");
        assert_eq!(cred.groups, []);
    }

    #[tokio::test]
    async fn a_remote_client_is_trusted_from_a_privileged_port() {
        let strict = AdmissionOptions::default();
        let loose = AdmissionOptions { secure: false, ..strict };
        let claims = sys(1000, 1000, &[]);
        for own_uid in [0, 1000] {
            assert_eq!(uid(own_uid, strict, &claims, elsewhere(true)).await, Ok(Some(1000)));
            let open = uid(own_uid, strict, &claims, elsewhere(false)).await;
            assert_eq!(open, Err(AuthStatus::TooWeak));
            assert_eq!(uid(own_uid, loose, &claims, elsewhere(false)).await, Ok(Some(1000)));
        }
    }

    #[tokio::test]
    async fn calls_without_a_credential_can_be_refused() {
        let strict = AdmissionOptions::default();
        let refusing = AdmissionOptions { auth_none: false, ..strict };
        let none = OpaqueAuth::NONE;
        assert_eq!(uid(0, strict, &none, here(Some(1000))).await, Ok(None));
        assert_eq!(uid(0, refusing, &none, here(Some(0))).await, Err(AuthStatus::TooWeak));
        assert_eq!(uid(0, refusing, &sys(0, 0, &[]), here(Some(0))).await, Ok(Some(0)));
    }

    #[tokio::test]
    async fn groups_are_looked_up_locally_if_configured() {
        let options = AdmissionOptions { manage_gids: true, ..AdmissionOptions::default() };
        let admission = Admission::new(options, 0);
        let sent: Vec<u32> = (100_000..100_016).collect();
        let identity = admission.identify(&sys(0, 0, &sent), &here(Some(0))).await.expect("root");
        let groups = identity.cred.expect("a credential").groups;
        assert!(groups.contains(&0) && !groups.contains(&100_000), "{groups:?}");
    }
}
