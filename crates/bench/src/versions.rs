//! Versions of NFS by name.

use weir_client::Version;

/// A version as in mount options: 3, 4.0, 4.1 or 4.2.
///
/// # Errors
/// There is no such version.
pub fn version(text: &str) -> Result<Version, String> {
    let found = Version::NEWEST_FIRST.into_iter().find(|v| v.to_string() == text);
    found.ok_or_else(|| "the versions are 3, 4.0, 4.1 and 4.2".into())
}

/// The requested versions, or all, oldest first.
pub(crate) fn versions(asked: &[Version]) -> Vec<Version> {
    let all = Version::NEWEST_FIRST.into_iter().rev();
    all.filter(|v| asked.is_empty() || asked.contains(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_mount_names_them() {
        assert_eq!(version("4.2"), Ok(Version::V4_2));
        assert!(version("4").is_err() && version("2").is_err());
        assert_eq!(versions(&[Version::V4_1, Version::V3]), [Version::V3, Version::V4_1]);
        assert_eq!(versions(&[]).len(), 4);
    }
}
