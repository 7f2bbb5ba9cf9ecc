//! Permission bits as users write them (chmod(1)): octal, `u+x,go-w`, `a=rX`, `g=u`.

use std::fmt;
use std::str::FromStr;

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// All bits; a directory keeps its set-ID bits unless they are written out.
    Octal {
        bits: u32,
        is_full: bool,
    },
    Symbolic {
        who: Who,
        action: u8,
        what: What,
    },
}

/// Whose bits: `0o4700` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Who {
    mask: u32,
    /// No class of users is named: the umask limits what changes.
    is_unnamed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Bits for all, to be masked, and execution for directories and programs only.
    Bits { bits: u32, execute_if: bool },
    /// The bits that the user, group or others have; the shift of theirs.
    Copied(u32),
}

const SET_IDS: u32 = 0o6000;

impl ModeChange {
    /// The bits of a file that had the bits `before`.
    pub fn apply(&self, before: u32, is_directory: bool, umask: u32) -> u32 {
        self.0.iter().fold(before & 0o7777, |mode, step| step.apply(mode, is_directory, umask))
    }
}

impl Step {
    fn apply(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        match *self {
            Self::Octal { bits, is_full } => match is_directory && !is_full {
                true => bits | mode & SET_IDS,
                false => bits,
            },
            Self::Symbolic { who, action, what } => {
                let bits = match what {
                    What::Bits { bits, execute_if } => {
                        let may = is_directory || mode & 0o111 != 0;
                        bits | if execute_if && may { 0o111 } else { 0 }
                    }
                    What::Copied(shift) => (mode >> shift & 7) * 0o111,
                };
                let limit = if who.is_unnamed { !(umask & 0o777) } else { u32::MAX };
                let bits = bits & who.mask & limit;
                match action {
                    b'+' => mode | bits,
                    b'-' => mode & !bits,
                    _ => {
                        // As GNU chmod: a directory's set-ID bits change only by name.
                        let kept = if is_directory { SET_IDS } else { 0 };
                        mode & !(who.mask & !kept) | bits
                    }
                }
            }
        }
    }
}

/// Why a text is no change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAMode;

impl fmt::Display for NotAMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a mode; write it like 640, u+x, go-w or a=rX")
    }
}

impl std::error::Error for NotAMode {}

impl FromStr for ModeChange {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).map_err(|_| NotAMode)?;
            let is_full = text.len() > 4;
            return match bits <= 0o7777 {
                true => Ok(Self(vec![Step::Octal { bits, is_full }])),
                false => Err(NotAMode),
            };
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            let names = clause.bytes().take_while(|b| b"ugoa".contains(b)).count();
            let (names, mut actions) = clause.as_bytes().split_at(names);
            let mask = names.iter().fold(0, |mask, name| {
                mask | match name {
                    b'u' => 0o4700,
                    b'g' => 0o2070,
                    b'o' => 0o1007,
                    _ => 0o7777,
                }
            });
            let is_unnamed = names.is_empty();
            let who = Who { mask: if is_unnamed { 0o7777 } else { mask }, is_unnamed };
            if actions.is_empty() {
                return Err(NotAMode);
            }
            while let [action @ (b'+' | b'-' | b'='), rest @ ..] = actions {
                let len = rest.iter().take_while(|b| !b"+-=".contains(b)).count();
                let (what, rest) = rest.split_at(len);
                steps.push(Step::Symbolic { who, action: *action, what: what_of(what)? });
                actions = rest;
            }
            if !actions.is_empty() {
                return Err(NotAMode);
            }
        }
        Ok(Self(steps))
    }
}

fn what_of(letters: &[u8]) -> Result<What, NotAMode> {
    if let [copied @ (b'u' | b'g' | b'o')] = letters {
        return Ok(What::Copied(match copied {
            b'u' => 6,
            b'g' => 3,
            _ => 0,
        }));
    }
    let (mut bits, mut execute_if) = (0, false);
    for letter in letters {
        match letter {
            b'r' => bits |= 0o444,
            b'w' => bits |= 0o222,
            b'x' => bits |= 0o111,
            b'X' => execute_if = true,
            b's' => bits |= SET_IDS,
            b't' => bits |= 0o1000,
            _ => return Err(NotAMode),
        }
    }
    Ok(What::Bits { bits, execute_if })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_chmod_applies_them() {
        // Checked against GNU chmod 9.4 with umask 022.
        for (text, before, is_directory, after) in [
            ("640", 0o7777, false, 0o640),
            ("0640", 0o2755, true, 0o2640),
            ("00640", 0o2755, true, 0o640),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("go-w", 0o666, false, 0o644),
            ("a=rX", 0o600, false, 0o444),
            ("a=rX", 0o700, false, 0o555),
            ("a=rX", 0o600, true, 0o555),
            ("g=u,o=", 0o751, false, 0o770),
            ("u=rwx,g+s", 0o640, false, 0o2740),
            ("+t", 0o777, true, 0o1777),
            ("u-x+w", 0o500, false, 0o600),
            ("ug=rw", 0o6777, false, 0o667),
            ("a=", 0o2755, true, 0o2000),
            ("g-s", 0o2755, true, 0o755),
        ] {
            let change: ModeChange = text.parse().unwrap();
            let found = change.apply(before, is_directory, 0o022);
            assert_eq!(found, after, "{text} of {before:o}: {found:o}");
        }
    }

    #[test]
    fn invalid_modes_are_refused() {
        for text in ["", "8", "10000", "u", "u+q", "+x,", "u~x", "x", "-1", "u+ug", "64O"] {
            assert_eq!(text.parse::<ModeChange>(), Err(NotAMode), "{text}");
        }
    }
}
