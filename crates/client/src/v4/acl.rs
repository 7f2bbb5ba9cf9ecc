//! Access control lists of files, as far as to know whether the mode of a file says all of its list.
//!
//! 1. A list that says more is not translated: its rights are finer than those of POSIX, and its users are names of the
//!    server.

use super::client::V4;
use super::requests::{getattr, putfh, take};
use crate::error::Result;
use crate::protocol::Handle;
use weir_nfs::v4::acl::{Ace, AceFlags, AceMask, AceType};
use weir_nfs::v4::attr::{ACL, Attrs, MODE};
use weir_nfs::v4::{Bitmap, OpRes};
use weir_rpc::OpaqueAuth;
use weir_vfs::{Acl, Error};

impl V4 {
    /// `None` if a file's mode says all of its access control list.
    ///
    /// # Errors
    /// `AccessDenied`: the list says more. `NotSupported`: the server has no lists.
    pub(super) async fn access_list(
        &self,
        cred: &OpaqueAuth,
        handle: &Handle,
    ) -> Result<Option<Acl>> {
        if !self.has_lists() {
            return Err(Error::NotSupported.into());
        }
        let ops = [putfh(handle), getattr(LIST)];
        let attrs = take!(self, self.call(cred, "GETATTR", &ops).await?, Getattr)?;
        Ok(access_list_of(&attrs)?)
    }

    /// Whether the server may have lists.
    pub(super) fn has_lists(&self) -> bool {
        let supported = self.about().and_then(|about| about.supported);
        supported.is_some_and(|supported| supported.contains(ACL))
    }
}

/// The attributes that [`access_list_of`] needs.
pub(super) const LIST: Bitmap = Bitmap::of(&[ACL, MODE]);

/// What is returned of a file's list.
pub(super) fn access_list_of(attrs: &Attrs) -> weir_vfs::Result<Option<Acl>> {
    match (&attrs.acl, attrs.mode) {
        (Some(aces), Some(mode)) if says_mode(aces, mode) => Ok(None),
        (Some(_), _) => Err(Error::AccessDenied),
        // Another file system of the server.
        (None, _) => Err(Error::NotSupported),
    }
}

/// Whether a list says no more than a mode: it names the three classes only, and gives the group what the mode gives
/// it; or it is empty, as that of nfs-ganesha where the file system has none.
fn says_mode(aces: &[Ace], mode: u32) -> bool {
    if aces.is_empty() {
        return true;
    }
    let of_file: Vec<&Ace> =
        aces.iter().filter(|ace| !ace.flags.contains(AceFlags::INHERIT_ONLY)).collect();
    let is_plain = |ace: &&Ace| {
        matches!(&ace.who[..], b"OWNER@" | b"GROUP@" | b"EVERYONE@")
            && matches!(ace.kind, AceType::Allow | AceType::Deny)
    };
    // The first entry with a right decides about it.
    let has_group = |right: AceMask| {
        let mut of_group = of_file.iter().filter(|ace| &ace.who[..] != b"OWNER@");
        let first = of_group.find(|ace| ace.mask.contains(right));
        first.is_some_and(|ace| ace.kind == AceType::Allow)
    };
    let rights =
        [(0o040, AceMask::READ_DATA), (0o020, AceMask::WRITE_DATA), (0o010, AceMask::EXECUTE)];
    of_file.iter().all(is_plain)
        && rights.iter().all(|&(bit, right)| mode & bit == 0 || has_group(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ace(kind: AceType, who: &str, mask: AceMask) -> Ace {
        Ace { kind, flags: AceFlags::empty(), mask, who: who.into() }
    }

    #[test]
    fn a_list_of_the_three_classes_is_a_mode() {
        use AceType::{Allow, Deny};
        let (read, both) = (AceMask::READ_DATA, AceMask::READ_DATA | AceMask::WRITE_DATA);
        let plain = [
            ace(Allow, "OWNER@", both),
            ace(Allow, "GROUP@", both),
            ace(Allow, "EVERYONE@", AceMask::empty()),
        ];
        assert!(says_mode(&plain, 0o660));
        assert!(says_mode(&[], 0o664));
        assert!(says_mode(&plain[..1], 0o600));
        assert!(says_mode(&[ace(Allow, "EVERYONE@", read)], 0o444), "which the group is in");
        assert!(!says_mode(&[ace(Deny, "GROUP@", read), ace(Allow, "EVERYONE@", read)], 0o444));
        let masked = [ace(Allow, "OWNER@", both), ace(Allow, "GROUP@", read)];
        assert!(!says_mode(&masked, 0o660), "the group has less than its bits");
        let mut named = plain.to_vec();
        named.push(ace(Allow, "bob@example.org", both));
        assert!(!says_mode(&named, 0o660));
        // What new files of a directory get.
        named[3].flags = AceFlags::INHERIT_ONLY | AceFlags::FILE_INHERIT;
        assert!(says_mode(&named, 0o660));
        assert!(!says_mode(&[ace(AceType::Audit, "EVERYONE@", read)], 0));
    }
}
