//! Whose calls are believed: what a credential claims, held against where the call comes from.
//!
//! AUTH_SYS proves nothing: it is a number that the client writes. What the server can know is
//! which port the client bound, and, for a program on this machine, which user owns its socket.
//!
//! 1. With `secure`, a claim is believed from a port that only a superuser binds (exports(5), `secure`),
//!    or from a socket on this machine that the superuser owns.
//! 2. A socket of another user on this machine speaks for that user alone, with the groups that this
//!    machine knows the user to have. A server that does not run as root acts as its own user for every
//!    caller, so it admits that user's sockets only.
//! 3. Everything else is refused with AUTH_TOOWEAK before any program keeps anything for the peer.
//!
//! What peers may hold of the server's limits is counted by their addresses (`address`, `quota`).
//!
//! - `groups`: the groups of users, as this machine knows them.
//! - `identity`: a caller. `origin`: where a connection comes from. `socket_owner`: which user owns a socket.

mod address;
mod descriptors;
mod groups;
mod identity;
mod origin;
mod quota;
mod socket_owner;

pub(crate) use address::{AddressShares, Addresses, LimitUse, Place, SharedLimits};
pub(crate) use descriptors::Descriptors;
pub use identity::Identity;
pub(crate) use origin::Origin;
#[cfg(test)]
pub(crate) use quota::Quota;
pub(crate) use quota::{Share, Taken, allowance, fair_share};
pub(crate) use socket_owner::unacknowledged_bytes;

use groups::Groups;
use origin::Locality;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_rpc::{AuthStatus, OpaqueAuth};
use weir_vfs::Cred;

/// Which credentials are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionOptions {
    /// Believe only what the origin of a call bears out: privileged ports, and on this machine the
    /// owner of the socket. Without it, any client may claim to be any user.
    pub secure: bool,
    /// Take calls without a credential (AUTH_NONE) as the anonymous user's.
    pub auth_none: bool,
    /// Look up the groups of users on this machine in place of those in the credential, which holds
    /// 16 at most.
    pub manage_gids: bool,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self { secure: true, auth_none: true, manage_gids: false }
    }
}

/// What of a caller's claim is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Any of it.
    Any,
    /// That it is this user.
    Only(u32),
    /// Nothing.
    Nothing,
}

/// Decides whose calls are executed.
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
    /// For a server that runs as `own_uid`.
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

    /// Decides by these options from the next call on.
    pub(crate) fn set(&self, options: AdmissionOptions) {
        let AdmissionOptions { secure, auth_none, manage_gids } = options;
        self.secure.store(secure, Ordering::Relaxed);
        self.auth_none.store(auth_none, Ordering::Relaxed);
        self.manage_gids.store(manage_gids, Ordering::Relaxed);
    }

    /// Whether calls without a credential are taken.
    pub(crate) fn takes_auth_none(&self) -> bool {
        self.auth_none.load(Ordering::Relaxed)
    }

    /// The caller behind a credential.
    ///
    /// # Errors
    /// The credential is malformed, of a flavor that is not taken, or claims what its origin does
    /// not bear out ([`AuthStatus::TooWeak`]).
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
        match origin.place() {
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

    /// Takes from a credential the groups that its user does not have.
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

    /// A user that no system has.
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
    async fn a_server_of_an_ordinary_user_admits_that_user_and_root_only() {
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
    async fn a_root_server_believes_a_local_user_to_be_itself_only() {
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
    async fn a_local_user_has_the_groups_of_this_machine_and_no_others() {
        let admission = Admission::new(AdmissionOptions::default(), 0);
        let auth = sys(STRANGER, 0, &[0, 42]);
        let identity = admission.identify(&auth, &here(Some(STRANGER))).await.expect("itself");
        let cred = identity.cred.expect("a credential");
        assert_ne!(cred.gid, 0, "nor as its first group");
        assert_eq!(cred.groups, []);
    }

    #[tokio::test]
    async fn a_remote_client_is_believed_from_a_privileged_port() {
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
    async fn groups_are_looked_up_here_where_that_is_asked_for() {
        let options = AdmissionOptions { manage_gids: true, ..AdmissionOptions::default() };
        let admission = Admission::new(options, 0);
        let sent: Vec<u32> = (100_000..100_016).collect();
        let identity = admission.identify(&sys(0, 0, &sent), &here(Some(0))).await.expect("root");
        let groups = identity.cred.expect("a credential").groups;
        assert!(groups.contains(&0) && !groups.contains(&100_000), "{groups:?}");
    }
}
