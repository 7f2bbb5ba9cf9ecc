//! An error in a configuration file: its place, its cause, and the remedy.

use std::ops::Range;
use std::path::Path;
use weir_tools::failure::Failure;

/// An error at a place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    span: Option<Range<usize>>,
    what: String,
    advice: Option<String>,
}

impl Problem {
    /// The error `what` at these bytes of the text.
    pub(super) fn at(span: Range<usize>, what: impl Into<String>) -> Self {
        Self { span: Some(span), what: what.into(), advice: None }
    }

    /// The error `what` of the whole text.
    pub(super) fn of_all(what: impl Into<String>) -> Self {
        Self { span: None, what: what.into(), advice: None }
    }

    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The error as a failure that names file, line and column.
    pub(super) fn tell(self, file: &Path, text: &str) -> Failure {
        let file = file.display();
        let place = match self.span {
            Some(span) => {
                let (line, column) = line_and_column(text, span.start);
                format!("{file}:{line}:{column}")
            }
            None => file.to_string(),
        };
        let failure = Failure::new("use the configuration", format!("{place}: {}", self.what));
        match self.advice {
            Some(advice) => failure.advice(advice),
            None => failure,
        }
    }
}

impl From<toml::de::Error> for Problem {
    fn from(error: toml::de::Error) -> Self {
        let message = error.message();
        let (what, advice) = match Misnamed::read(message) {
            Some(misnamed) => misnamed.tell(),
            None => match in_other_words(message) {
                Some((what, advice)) => (what, Some(advice)),
                None => (message.trim_end().replace('\n', ", "), None),
            },
        };
        Self { span: error.span(), what, advice }
    }
}

/// Translates serde's messages, which name Rust types, and adds the remedy.
fn in_other_words(message: &str) -> Option<(String, String)> {
    let said = |what: String, advice: &str| Some((what, advice.to_owned()));
    if message.starts_with("missing field `path`") {
        return said("an export without a directory".into(), "add path = \"/srv/...\"");
    }
    if let Some(field) = message.strip_prefix("missing field `") {
        let field = field.split('`').next()?;
        return said(format!("`{field}` is missing"), "add it");
    }
    let (kind, rest) = message.trim_end().split_once(": ")?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    // Such as: string "x", integer `5`, map, sequence.
    let quoted = found.split_once(' ').map(|(_, value)| value.trim_matches('`'));
    let found = match (found, quoted) {
        ("map", _) => "a table",
        ("sequence", _) => "a list",
        ("floating point", _) => "a fraction",
        (found, None) => found,
        (_, Some(quoted)) => quoted.trim_start_matches("point `"),
    };
    let number = ["u8", "u16", "u32", "u64", "usize", "i32", "i64"].contains(&expected);
    match (kind, expected) {
        ("invalid type", "a sequence") if found == "a table" => said(
            "[export] is one table, and there may be several".into(),
            "write [[export]], with two brackets on each side",
        ),
        ("invalid type", "a boolean") => {
            said(format!("{found} where true or false is needed"), "write it without quotes")
        }
        ("invalid type", _) if number => {
            said(format!("{found} where a whole number is needed"), "write digits, without quotes")
        }
        ("invalid value", _) if number => {
            said(format!("{found} is too small or too large"), "choose another number")
        }
        ("invalid type", expected) if expected.ends_with("string") => {
            said(format!("{found} where a string is needed"), "put it in quotes")
        }
        ("invalid type", expected) => {
            Some((format!("{found} is not valid here"), format!("write {expected}")))
        }
        _ => None,
    }
}

/// Line and column, in characters, both from 1.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let at = (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    (line, column)
}

/// An unknown name, and the known ones, out of serde's message.
#[derive(Debug, PartialEq, Eq)]
struct Misnamed<'a> {
    kind: &'static str,
    name: &'a str,
    known: Vec<&'a str>,
}

impl<'a> Misnamed<'a> {
    fn read(message: &'a str) -> Option<Self> {
        let (kind, rest) = [("key", "unknown field `"), ("value", "unknown variant `")]
            .into_iter()
            .find_map(|(kind, prefix)| Some((kind, message.strip_prefix(prefix)?)))?;
        let (name, rest) = rest.split_once('`')?;
        let known = rest.split('`').skip(1).step_by(2).collect();
        Some(Self { kind, name, known })
    }

    fn tell(self) -> (String, Option<String>) {
        let Self { kind, name, known } = self;
        let close = known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(name, known), known))
            .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
            .min();
        let advice = match close {
            Some((_, known)) => format!("did you mean `{known}`?"),
            None => format!("valid are {}", known.join(", ")),
        };
        (format!("unknown {kind} `{name}`"), Some(advice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let text = "a\nbäc\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 2), (2, 1));
        assert_eq!(line_and_column(text, 5), (2, 3));
        assert_eq!(line_and_column(text, 4), (2, 2), "within a character");
        assert_eq!(line_and_column(text, 99), (3, 1));
    }

    #[test]
    fn a_name_like_a_known_one_is_suggested() {
        let told = |message| Misnamed::read(message).unwrap().tell();
        let (what, advice) = told("unknown field `budgt`, expected one of `lease`, `budget`");
        assert_eq!(what, "unknown key `budgt`");
        assert_eq!(advice.unwrap(), "did you mean `budget`?");
        let (_, advice) = told("unknown variant `xyz`, expected `root` or `all`");
        assert_eq!(advice.unwrap(), "valid are root, all");
        assert_eq!(Misnamed::read("invalid type"), None);
    }
}
