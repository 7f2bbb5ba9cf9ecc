//! Runs this program again, as a helper process of a benchmark.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use weir_tools::failure::{Asked, Failure, Result};

/// This program.
pub(crate) fn program() -> Result<PathBuf> {
    std::env::current_exe().asked(|| "find this program".into())
}

/// Whether it is a program of the system.
pub(crate) fn is_installed(program: &str) -> bool {
    let dirs = ["/usr/bin", "/bin", "/usr/local/bin"];
    dirs.iter().any(|dir| Path::new(dir).join(program).exists())
}

/// The arguments that run this program as the helper `name`.
pub(crate) fn arguments(name: &str, settings: &impl Serialize) -> Result<[String; 4]> {
    let settings = serde_json::to_string(settings).map_err(io::Error::from);
    let settings = settings.asked(|| format!("start the helper {name}"))?;
    Ok(["bench".into(), "helper".into(), name.into(), settings])
}

/// What a helper was told.
pub(crate) fn settings<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Failure::new("understand a helper's settings", error.to_string()))
}

/// A path in a helper's settings. It is sent as bytes, because not every path is JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct PathBytes(PathBuf);

impl From<PathBuf> for PathBytes {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl From<Vec<u8>> for PathBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(OsString::from_vec(bytes).into())
    }
}

impl From<PathBytes> for Vec<u8> {
    fn from(path: PathBytes) -> Self {
        path.0.into_os_string().into_vec()
    }
}

impl std::ops::Deref for PathBytes {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// Writes a line to standard output, for the process that started this one.
pub(crate) fn answer(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .asked(|| "answer".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip_to_the_child() {
        let [bench, helper, name, text] = arguments("x", &(7, "a b")).unwrap();
        assert_eq!([&*bench, &*helper, &*name], ["bench", "helper", "x"]);
        assert_eq!(settings::<(u32, String)>(&text).unwrap(), (7, "a b".into()));
        assert!(settings::<u32>("{").is_err());
    }

    #[test]
    fn paths_of_any_bytes_round_trip_to_the_child() {
        let path = PathBuf::from(OsString::from_vec(b"/a/\xff b".to_vec()));
        let files = vec![PathBytes::from(path.clone())];
        let [.., text] = arguments("x", &files).unwrap();
        let came = settings::<Vec<PathBytes>>(&text).unwrap();
        assert_eq!(came, files);
        assert_eq!(*came[0], *path);
    }
}
