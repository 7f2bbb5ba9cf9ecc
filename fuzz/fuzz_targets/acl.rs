#![no_main]
//! The decoder of access control lists as Linux keeps them: what is read is whole, and written the
//! same.

use libfuzzer_sys::fuzz_target;
use weir_vfs::Acl;

fuzz_target!(|data: &[u8]| {
    if let Ok(acl) = Acl::from_xattr(data) {
        assert_eq!(Acl::new(acl.entries().iter().copied()), Ok(acl.clone()));
        assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(acl));
    }
});
