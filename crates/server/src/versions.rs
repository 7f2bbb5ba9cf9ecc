//! The protocol versions that a server offers.

use std::fmt;
use std::str::FromStr;

bitflags::bitflags! {
    /// Versions of NFS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Versions: u8 {
        /// NFSv3, with MOUNT, NFSACL, NLM and NSM.
        const V3 = 1;
        /// NFSv4.0.
        const V4_0 = 2;
        /// NFSv4.1.
        const V4_1 = 4;
        /// NFSv4.2.
        const V4_2 = 8;
    }
}

impl Versions {
    /// All versions.
    pub const ALL: Self = Self::all();
    /// All minor versions of NFSv4.
    pub const V4: Self = Self::V4_0.union(Self::V4_1).union(Self::V4_2);

    /// Whether the set contains a minor version of NFSv4.
    pub fn has_minor(self, minor: u32) -> bool {
        match minor {
            0 => self.contains(Self::V4_0),
            1 => self.contains(Self::V4_1),
            2 => self.contains(Self::V4_2),
            _ => false,
        }
    }
}

/// The names of versions.
const NAMES: [(&str, Versions); 5] = [
    ("3", Versions::V3),
    ("4.0", Versions::V4_0),
    ("4.1", Versions::V4_1),
    ("4.2", Versions::V4_2),
    ("4", Versions::V4),
];

/// The name of a version is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such version: {0}; there are 3, 4.0, 4.1, 4.2, and 4 for all of 4")]
pub struct NoSuchVersion(String);

impl FromStr for Versions {
    type Err = NoSuchVersion;

    fn from_str(text: &str) -> Result<Self, NoSuchVersion> {
        let named = NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, versions)| *versions).ok_or_else(|| NoSuchVersion(text.to_owned()))
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = NAMES.iter().filter(|(_, version)| version.bits().is_power_of_two());
        let names: Vec<&str> =
            single.filter(|(_, v)| self.contains(*v)).map(|(name, _)| *name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_names_round_trip() {
        assert_eq!("4".parse(), Ok(Versions::V4));
        assert_eq!((Versions::V3 | Versions::V4_2).to_string(), "3, 4.2");
        assert_eq!(Versions::ALL.to_string(), "3, 4.0, 4.1, 4.2");
        assert!("2".parse::<Versions>().is_err());
        assert!(Versions::V4.has_minor(2) && !Versions::V4_1.has_minor(2));
        assert!(!Versions::ALL.has_minor(3));
    }
}
