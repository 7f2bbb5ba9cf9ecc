//! Access control lists of files, read by NFSACL, which servers offer at the port of NFS.

use super::V3;
use super::convert::{Status, handle_of};
use super::program::call_for;
use crate::error::{Error, Refusal, Result, Violation};
use crate::protocol::{Handle, broken};
use std::sync::atomic::Ordering::Relaxed;
use weir_nfs::nfsacl::{self, Entries, Entry, Getacl, GetaclRes, Mask, Procedure};
use weir_nfs::v3::Error as Nfs3Error;
use weir_rpc::OpaqueAuth;
use weir_vfs::Acl;

/// For messages.
const GETACL: &str = "GETACL";
/// Room for the longest list.
const MAX_BYTES: usize = 32 << 10;

impl V3 {
    /// The access list of a file; `None` if its mode says the same. The first call shows whether the server offers the
    /// program.
    pub(super) async fn access_list(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
    ) -> Result<Option<Acl>> {
        if self.has_no_lists.load(Relaxed) {
            return Err(weir_vfs::Error::NotSupported.into());
        }
        let mask = Mask::ACCESS | Mask::ACCESS_COUNT;
        let args = Getacl { file: handle_of(handle), mask };
        let mut backoff = self.backoff();
        let lists = loop {
            match self.lists(cred, &args).await? {
                Err(failure) if failure.status() == Nfs3Error::Jukebox && backoff.wait().await => {}
                Ok(lists) => break lists,
                Err(failure) => return Err(self.failed(GETACL, failure.status())),
            }
        };
        if lists.access.entries.0.is_empty() {
            // nfs-ganesha, where the file system has none.
            return Ok(None);
        }
        let acl = acl_of(&lists.access)
            .ok_or_else(|| broken(&self.server, GETACL, Violation::BadValue))?;
        Ok((!acl.is_minimal()).then_some(acl))
    }

    async fn lists(&self, cred: &OpaqueAuth, args: &Getacl) -> Result<GetaclRes> {
        let which = (nfsacl::PROGRAM, nfsacl::VERSION, Procedure::Getacl as u32);
        match call_for(self.connection(), cred, which, (GETACL, MAX_BYTES), args).await {
            Err(Error::Refused { refusal, .. })
                if refusal.is_other_version() || refusal == Refusal::ProcedureUnavailable =>
            {
                self.has_no_lists.store(true, Relaxed);
                Err(weir_vfs::Error::NotSupported.into())
            }
            lists => lists,
        }
    }
}

/// Decodes a list; `None` if it is none.
fn acl_of(list: &Entries) -> Option<Acl> {
    // Solaris sends additional bits.
    let entry = |entry: &Entry| (entry.tag, entry.id, entry.rights & 7);
    Acl::from_nfsacl(list.entries.0.iter().map(entry)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_vfs::AclWho;

    #[test]
    fn lists_are_decoded_from_the_wire() {
        let decoded = |list: &[(u32, u32, u32)]| {
            let entry = |&(tag, id, rights): &(u32, u32, u32)| Entry { tag, id, rights };
            let entries: Vec<_> = list.iter().map(entry).collect();
            acl_of(&Entries { count: entries.len() as u32, entries: entries.into() })
        };
        let minimal = decoded(&[(1, 9, 6), (4, 9, 4), (0x10, 0, 4), (0x20, 0, 0)]);
        assert_eq!(minimal, Some(Acl::of_mode(0o640)));
        let named = decoded(&[(1, 9, 6), (2, 7, 6), (4, 9, 0), (0x10, 0, 0xfffe), (0x20, 0, 0)]);
        let named = named.unwrap();
        assert_eq!((named.mode(), named.get(AclWho::Group)), (0o660, Some(0)));
        assert_eq!(named.get(AclWho::User(7)), Some(6));
        let masked = decoded(&[(1, 9, 6), (4, 9, 0), (0x10, 0, 6), (0x20, 0, 0)]).unwrap();
        assert!(!masked.is_minimal(), "its group has less than its mode says");
        for bad in [&[][..], &[(1, 0, 6), (4, 0, 4)], &[(1, 0, 6), (4, 0, 4), (3, 0, 0)]] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
