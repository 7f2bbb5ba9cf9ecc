//! Colours of file names, by the environment variable LS_COLORS (dircolors(1)).

use std::collections::HashMap;
use std::io::IsTerminal;
use weir_vfs::{Attr, FileKind};

/// When names have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// The choices on the command line.
pub(crate) const WHEN: &[(&str, &str, When)] = &[
    ("auto", "On a terminal", When::Auto),
    ("always", "Always", When::Always),
    ("never", "Never", When::Never),
];

/// What dircolors prints without a configuration, as far as types of files go.
const USUAL: &str = "di=01;34:ln=01;36:pi=40;33:so=01;35:bd=40;33;01:cd=40;33;01:su=37;41:sg=30;43:\
                     tw=30;42:ow=34;42:st=37;44:ex=01;32";

/// Colours by types and suffixes.
#[derive(Debug, Default)]
pub(crate) struct Colours {
    types: HashMap<String, String>,
    suffixes: Vec<(String, String)>,
}

impl Colours {
    /// The colours for standard output; none if it gets none.
    pub(crate) fn of_output(when: When) -> Option<Self> {
        let wanted = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => std::io::stdout().is_terminal() && console::colors_enabled(),
        };
        let set = std::env::var("LS_COLORS").unwrap_or_default();
        wanted.then(|| Self::parse(if set.is_empty() { USUAL } else { &set }))
    }

    /// Codes that are not numbers are left out: they could move the cursor.
    fn parse(text: &str) -> Self {
        let mut colours = Self::default();
        for entry in text.split(':') {
            let Some((key, code)) = entry.split_once('=') else { continue };
            if code.is_empty() || !code.bytes().all(|b| b.is_ascii_digit() || b == b';') {
                continue;
            }
            match key.strip_prefix('*') {
                Some(suffix) => colours.suffixes.push((suffix.to_lowercase(), code.into())),
                None => drop(colours.types.insert(key.into(), code.into())),
            }
        }
        colours
    }

    /// `text`, which stands for the file called `name`, in its colour.
    pub(crate) fn paint(&self, text: Vec<u8>, name: &[u8], attr: &Attr) -> Vec<u8> {
        let Some(code) = self.code(name, attr).filter(|code| *code != "0") else { return text };
        [b"\x1b[", code.as_bytes(), b"m", &text, b"\x1b[0m"].concat()
    }

    fn code(&self, name: &[u8], attr: &Attr) -> Option<&str> {
        let of_type = |key: &str| self.types.get(key).map(String::as_str);
        let is = |bits: u32| attr.mode & bits == bits;
        // The first of these that has a colour counts.
        let special = match attr.kind {
            FileKind::Directory => [("tw", is(0o1002)), ("ow", is(0o2)), ("st", is(0o1000))],
            FileKind::Regular => {
                [("su", is(0o4000)), ("sg", is(0o2000)), ("ex", attr.mode & 0o111 != 0)]
            }
            _ => [("", false); 3],
        };
        let special = special.into_iter().find_map(|(key, holds)| of_type(key).filter(|_| holds));
        if special.is_some() {
            return special;
        }
        let key = match attr.kind {
            FileKind::Directory => "di",
            FileKind::Symlink => "ln",
            FileKind::Fifo => "pi",
            FileKind::Socket => "so",
            FileKind::Block => "bd",
            FileKind::Char => "cd",
            FileKind::Regular => {
                let name = name.to_ascii_lowercase();
                // The last of several that match counts.
                let mut suffixes = self.suffixes.iter().rev();
                let found = suffixes.find(|(suffix, _)| name.ends_with(suffix.as_bytes()));
                return found.map(|(_, code)| code.as_str()).or_else(|| of_type("fi"));
            }
        };
        // `ln=target` is no number, so it is left out, and links have no colour.
        of_type(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;
    use weir_vfs::FileId;

    fn attr(kind: FileKind, mode: u32) -> Attr {
        let time = SystemTime::UNIX_EPOCH;
        Attr {
            id: FileId { ino: 1, generation: 1 },
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            rdev: (0, 0),
            fsid: 1,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: 0,
        }
    }

    #[test]
    fn colours_as_ls_chooses_them() {
        let colours =
            Colours::parse("di=01;34:ow=34;42:ex=01;32:*.img=31:*.tar.gz=33:ln=target:fi=0:x");
        for (name, kind, mode, code) in [
            ("d", FileKind::Directory, 0o755, Some("01;34")),
            ("d", FileKind::Directory, 0o777, Some("34;42")),
            ("d", FileKind::Directory, 0o1777, Some("34;42")),
            ("DISK.IMG", FileKind::Regular, 0o644, Some("31")),
            ("a.tar.gz", FileKind::Regular, 0o644, Some("33")),
            ("a.img", FileKind::Regular, 0o755, Some("01;32")),
            ("plain", FileKind::Regular, 0o644, Some("0")),
            ("link", FileKind::Symlink, 0o777, None),
        ] {
            assert_eq!(colours.code(name.as_bytes(), &attr(kind, mode)), code, "{name} {mode:o}");
        }
        let painted = colours.paint(b"a.img".to_vec(), b"a.img", &attr(FileKind::Regular, 0o600));
        assert_eq!(painted, b"\x1b[31ma.img\x1b[0m");
        let plain = colours.paint(b"x".to_vec(), b"x", &attr(FileKind::Regular, 0o600));
        assert_eq!(plain, b"x");
    }

    #[test]
    fn no_code_moves_the_cursor() {
        assert!(Colours::parse("di=01;34m\x1b[2J:fi=").types.is_empty());
    }
}
