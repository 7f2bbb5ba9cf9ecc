//! This program once more, as a process that helps a benchmark.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::path::PathBuf;
use weir_tools::failure::{Asked, Failure, Result};

/// This program.
pub(crate) fn program() -> Result<PathBuf> {
    std::env::current_exe().asked(|| "find this program".into())
}

/// The arguments that make this program the helper `name`.
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

/// Writes a line to standard output, where the process that started this one reads it.
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
    fn settings_come_as_they_went() {
        let [bench, helper, name, text] = arguments("x", &(7, "a b")).unwrap();
        assert_eq!([&*bench, &*helper, &*name], ["bench", "helper", "x"]);
        assert_eq!(settings::<(u32, String)>(&text).unwrap(), (7, "a b".into()));
        assert!(settings::<u32>("{").is_err());
    }
}
