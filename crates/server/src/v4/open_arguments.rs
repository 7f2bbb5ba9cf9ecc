//! Which arguments of OPEN the server supports (RFC 9754 section 3), and which it refuses.

use weir_nfs::v4::attr::OpenArguments;
use weir_nfs::v4::op::open::ShareAccess;
use weir_nfs::v4::{Bitmap, Error};

/// The flags of `share_access` in every minor version with sessions. The two about later notices are
/// accepted, and the reply says that no notice will come.
const FLAGS: ShareAccess = ShareAccess::BOTH
    .union(ShareAccess::WANT_MASK)
    .union(ShareAccess::SIGNAL_WHEN_RESOURCE_AVAILABLE)
    .union(ShareAccess::PUSH_WHEN_UNCONTENDED);
/// The flags that RFC 9754 adds to minor version 2.
const FLAGS_OF_2: ShareAccess =
    ShareAccess::WANT_DELEG_TIMESTAMPS.union(ShareAccess::WANT_OPEN_XOR_DELEGATION);

// The numbers of RFC 9754 section 3.1.
const READ: u32 = 1;
const WRITE: u32 = 2;
const BOTH: u32 = 3;
const DENY_NONE: u32 = 0;
const WANT_ANY_DELEG: u32 = 3;
const WANT_NO_DELEG: u32 = 4;
const WANT_CANCEL: u32 = 5;
const WANT_DELEG_TIMESTAMPS: u32 = 20;
const WANT_OPEN_XOR_DELEGATION: u32 = 21;
const CLAIM_NULL: u32 = 0;
const CLAIM_PREVIOUS: u32 = 1;
const CLAIM_DELEGATE_CUR: u32 = 2;
const CLAIM_FH: u32 = 4;
const CLAIM_DELEG_CUR_FH: u32 = 5;
const UNCHECKED: u32 = 0;
const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;
const EXCLUSIVE_1: u32 = 3;

/// The attribute `open_arguments`; `delegated_times`: clients may answer for a file's times.
pub(super) fn supported(delegated_times: bool) -> OpenArguments {
    let mut wants =
        Bitmap::of(&[WANT_ANY_DELEG, WANT_NO_DELEG, WANT_CANCEL, WANT_OPEN_XOR_DELEGATION]);
    if delegated_times {
        wants.insert(WANT_DELEG_TIMESTAMPS);
    }
    OpenArguments {
        share_access: Bitmap::of(&[READ, WRITE, BOTH]),
        share_deny: Bitmap::of(&[DENY_NONE, READ, WRITE, BOTH]),
        share_access_want: wants,
        // No delegation outlives its client: there is nothing to claim after a client's restart.
        open_claim: Bitmap::of(&[
            CLAIM_NULL,
            CLAIM_PREVIOUS,
            CLAIM_DELEGATE_CUR,
            CLAIM_FH,
            CLAIM_DELEG_CUR_FH,
        ]),
        create_mode: Bitmap::of(&[UNCHECKED, GUARDED, EXCLUSIVE, EXCLUSIVE_1]),
    }
}

/// Refuses flags and wants that a minor version does not have. Those of minor version 0 are ignored,
/// because it has none.
pub(super) fn check(minor: u32, access: ShareAccess) -> Result<(), Error> {
    let known = match minor {
        0 => return Ok(()),
        1 => FLAGS,
        _ => FLAGS | FLAGS_OF_2,
    };
    let undefined = access.bits() & !known.bits() != 0 || access.want().is_none();
    if undefined { Err(Error::Inval) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_flags_and_wants_are_refused() {
        let bits = ShareAccess::from_bits_retain;
        for (minor, access, expected) in [
            (2, ShareAccess::READ | FLAGS_OF_2, Ok(())),
            (1, ShareAccess::READ | FLAGS_OF_2, Err(Error::Inval)),
            (1, ShareAccess::READ | ShareAccess::SIGNAL_WHEN_RESOURCE_AVAILABLE, Ok(())),
            (1, ShareAccess::READ | ShareAccess::WANT_CANCEL, Ok(())),
            (1, bits(0x0601), Err(Error::Inval)),
            (2, bits(0xff01), Err(Error::Inval)),
            (2, bits(0x0040_0001), Err(Error::Inval)),
            (0, bits(0x0040_0001), Ok(())),
        ] {
            assert_eq!(check(minor, access), expected, "{minor} {access:?}");
        }
    }
}
