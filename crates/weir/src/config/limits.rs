//! The table `[limits]` of the configuration file: what peers may make the server hold. docs/LIMITS.md
//! explains every key; a key that is left out has the server's default.

use super::file::Text;
use super::problem::Problem;
use serde::Deserialize;
use std::time::Duration;
use toml::Spanned;
use weir_server::ServerConfig;
use weir_tools::size::Size;
use weir_tools::text::size_text;

/// A field of the server's limits.
trait Field {
    fn set(&mut self, value: u64);
    fn get(&self) -> u64;
}

impl Field for usize {
    fn set(&mut self, value: u64) {
        *self = Self::try_from(value).unwrap_or(Self::MAX);
    }

    fn get(&self) -> u64 {
        *self as u64
    }
}

impl Field for u64 {
    fn set(&mut self, value: u64) {
        *self = value;
    }

    fn get(&self) -> u64 {
        *self
    }
}

/// In whole seconds.
impl Field for Duration {
    fn set(&mut self, value: u64) {
        *self = Self::from_secs(value);
    }

    fn get(&self) -> u64 {
        self.as_secs()
    }
}

/// What the value of a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Count,
    Bytes,
    Seconds,
}

impl Unit {
    fn text(self, value: u64) -> String {
        match self {
            Self::Count => value.to_string(),
            Self::Bytes => size_text(value),
            Self::Seconds => format!("{value} s"),
        }
    }
}

/// A value as the file writes it.
trait Written {
    /// The value; `None` if it is no absolute number.
    fn value(&self) -> Option<u64>;
}

impl Written for u64 {
    fn value(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Written for Text<Size> {
    fn value(&self) -> Option<u64> {
        match self.0 {
            Size::Bytes(bytes) => Some(bytes),
            Size::Percent(_) => None,
        }
    }
}

/// Each row: the key, its type in the file, its unit, its least and most value, and the server's field.
macro_rules! limits {
    ($($key:ident: $written:ty, $unit:ident, $least:expr, $most:expr, $($field:ident).+;)*) => {
        /// The keys that are given, and where.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct LimitsTable {
            $($key: Option<Spanned<$written>>,)*
        }

        /// The limits that are not the server's defaults.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct LimitSettings {
            $($key: Option<u64>,)*
        }

        impl LimitsTable {
            pub(super) fn settings(self) -> Result<LimitSettings, Problem> {
                let settings = LimitSettings {
                    $($key: self.$key.as_ref()
                        .map(|given| within(given, stringify!($key), Unit::$unit, $least, $most))
                        .transpose()?,)*
                };
                let mut config = ServerConfig::new(Vec::new(), "");
                settings.apply(&mut config);
                let (one, all) = (config.transport.reply_bytes, config.transport.all_reply_bytes);
                let given = [&self.connection_reply_bytes, &self.reply_bytes];
                if one > all && let Some(given) = given.into_iter().flatten().next() {
                    let [one, all] = [one, all].map(|bytes| size_text(bytes as u64));
                    let what = format!("one connection may hold {one}, but all together only {all}");
                    let advice = "lower `connection_reply_bytes`, or raise `reply_bytes`";
                    return Err(Problem::at(given.span(), what).advice(advice));
                }
                Ok(settings)
            }
        }

        impl LimitSettings {
            /// Sets the limits that are given.
            pub(crate) fn apply(&self, config: &mut ServerConfig) {
                $(if let Some(value) = self.$key {
                    config.$($field).+.set(value);
                })*
            }

            /// Each limit of a server: its key, its value, and that as a text with its unit.
            pub(crate) fn of(config: &ServerConfig) -> Vec<(&'static str, u64, String)> {
                vec![$({
                    let value = config.$($field).+.get();
                    (stringify!($key), value, Unit::$unit.text(value))
                },)*]
            }
        }
    };
}

/// Enough for any machine: such a table alone would take its memory.
const MANY: u64 = 1 << 30;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DAY: u64 = 24 * 3600;

limits! {
    connections: u64, Count, 4, MANY, transport.connections;
    calls_per_connection: u64, Count, 1, 1024, transport.in_flight;
    call_bytes: Text<Size>, Bytes, 4 * MIB, 1024 * GIB, transport.call_bytes;
    connection_reply_bytes: Text<Size>, Bytes, 2 * MIB, 64 * GIB, transport.reply_bytes;
    reply_bytes: Text<Size>, Bytes, 16 * MIB, 1024 * GIB, transport.all_reply_bytes;
    idle: u64, Seconds, 10, DAY, transport.idle;
    stall: u64, Seconds, 5, 3600, transport.stall;
    clients: u64, Count, 4, MANY, state.clients;
    sessions: u64, Count, 4, MANY, state.sessions;
    opens: u64, Count, 4, MANY, state.opens;
    locks: u64, Count, 4, MANY, state.locks;
    delegations: u64, Count, 0, MANY, state.delegations;
    store_locks: u64, Count, 0, MANY, state.store_locks;
    nlm_hosts: u64, Count, 4, MANY, state.nlm_hosts;
    nlm_waiting: u64, Count, 4, MANY, state.nlm_waiting;
    kept_reply_bytes: Text<Size>, Bytes, 64 * KIB, 1024 * GIB, state.kept_reply_bytes;
    owner_bytes: Text<Size>, Bytes, 64 * KIB, 1024 * GIB, state.owner_bytes;
    courtesy: u64, Seconds, 0, 30 * DAY, state.courtesy;
}

fn within(
    given: &Spanned<impl Written>,
    key: &str,
    unit: Unit,
    least: u64,
    most: u64,
) -> Result<u64, Problem> {
    let Some(value) = given.get_ref().value() else {
        return Err(Problem::at(given.span(), format!("`{key}` as a percentage"))
            .advice("write a size like \"256M\""));
    };
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let what = format!("`{key}` of {}", unit.text(value));
    let advice = format!("take {} to {}, or leave it out", unit.text(least), unit.text(most));
    Err(Problem::at(given.span(), what).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::{refused, settings};
    use super::*;

    const EXPORT: &str = "[[export]]\npath = \"/srv\"\n";

    fn served(text: &str) -> ServerConfig {
        let mut config = ServerConfig::new(Vec::new(), "");
        settings(&format!("{text}\n{EXPORT}")).limits.apply(&mut config);
        config
    }

    #[test]
    fn every_limit_of_the_file_is_a_limit_of_the_server() {
        let default = LimitSettings::of(&ServerConfig::new(Vec::new(), ""));
        assert_eq!(LimitSettings::of(&served("")), default);
        assert_eq!(LimitSettings::of(&served("[limits]")), default);
        for (key, value, text) in &default {
            let other = value / 2;
            let config = served(&format!("[limits]\n{key} = {other}"));
            for (name, found, _) in LimitSettings::of(&config) {
                let before = default.iter().find(|(other, ..)| *other == name).unwrap().1;
                assert_eq!(found, if name == *key { other } else { before }, "{key}: {name}");
            }
            assert!(!text.is_empty());
        }
        let config = served("[limits]\nreply_bytes = \"1G\"\nidle = 600\nopens = 1000");
        assert_eq!(config.transport.all_reply_bytes, 1 << 30);
        assert_eq!((config.transport.idle.as_secs(), config.state.opens), (600, 1000));
    }

    #[test]
    fn the_example_and_the_document_name_every_limit_and_its_default() {
        let example = include_str!("../../../../dist/weir.toml");
        let (_, example) = example.split_once("\n[limits]\n").unwrap();
        let document = include_str!("../../../../docs/LIMITS.md");
        for (key, value, _) in LimitSettings::of(&ServerConfig::new(Vec::new(), "")) {
            let written =
                example.lines().find_map(|line| line.strip_prefix(&format!("# {key} = ")));
            let written = written.unwrap_or_else(|| panic!("{key} is not in the example"));
            let limits = served(&format!("[limits]\n{key} = {written}"));
            let found = LimitSettings::of(&limits).into_iter().find(|(name, ..)| *name == key);
            assert_eq!(found.unwrap().1, value, "{key} = {written}");
            assert!(document.contains(&format!(" | `{key}` |")), "{key} is not in the document");
        }
    }

    #[test]
    fn errors_name_the_limit_and_what_is_possible() {
        for (text, said) in [
            ("opens = 1", ":2:9: `opens` of 1; take 4 to 1073741824, or leave it out"),
            (
                "reply_bytes = \"1M\"",
                ":2:15: `reply_bytes` of 1.00 MiB; take 16.00 MiB to 1.00 TiB",
            ),
            ("call_bytes = \"10%\"", ":2:14: `call_bytes` as a percentage; write a size like"),
            ("idle = 1", ":2:8: `idle` of 1 s; take 10 s to 86400 s, or leave it out"),
            ("opens = \"many\"", ":2:9: \"many\" where a whole number is needed"),
            ("opns = 5", ":2:1: unknown key `opns`; did you mean `opens`?"),
            (
                "connection_reply_bytes = \"1G\"",
                ":2:26: one connection may hold 1.00 GiB, but all together only 256.00 MiB; lower",
            ),
        ] {
            let refused = refused(&format!("[limits]\n{text}\n{EXPORT}"));
            let expected = format!("cannot use the configuration: weir.toml{said}");
            assert!(refused.starts_with(&expected), "{text}\n{refused}\n{expected}");
        }
    }
}
