//! The configuration file (TOML); `dist/weir.toml` explains every key.
//!
//! 1. A file takes effect as a whole or not at all; errors name line and column.
//! 2. Reading the file checks its directories, so that a missing one is an error before anything
//!    changes.

use super::limits::LimitsTable;
use super::problem::Problem;
use super::{Bind, CacheArg, DurabilityArg, ExportSettings, NOBODY, Settings, SquashArg};
use serde::de::{Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use weir_server::export::{ClientAccess, ClientRule, Network, check_path, clash};
use weir_server::{AdmissionOptions, Versions};
use weir_tools::failure::{Asked, Result};
use weir_tools::memory::check_budget;
use weir_tools::size::Size;

/// Valid leases, in seconds.
pub(crate) const LEASE_SECONDS: std::ops::RangeInclusive<u32> = 5..=3600;
/// Most threads.
pub(crate) const MAX_THREADS: usize = 1024;

/// Reads a configuration file, and checks its directories.
pub(crate) fn load(path: &Path) -> Result<Settings> {
    let text = std::fs::read_to_string(path)
        .asked(|| format!("read the configuration {}", path.display()))?;
    let (mut settings, places) = parse(&text).map_err(|problem| problem.tell(path, &text))?;
    for (export, place) in settings.exports.iter_mut().zip(places) {
        export.dir = look(&export.dir)
            .map_err(|(what, advice)| Problem::at(place, what).advice(advice).tell(path, &text))?;
    }
    Ok(settings)
}

/// The directory at a path, without symbolic links.
fn look(path: &Path) -> std::result::Result<PathBuf, (String, &'static str)> {
    let shown = path.display();
    match path.canonicalize() {
        Ok(dir) if dir.is_dir() => match readable(&dir) {
            Ok(()) => Ok(dir),
            Err(error) => Err((
                format!("{shown}: {error}"),
                "change its permissions, or run the server as a user who may read it",
            )),
        },
        Ok(_) => {
            Err((format!("{shown} is not a directory"), "name the directory that contains it"))
        }
        Err(error) => {
            Err((format!("{shown}: {error}"), "create the directory, or correct the path"))
        }
    }
}

/// Fails if this process may not list a directory and use what is in it.
pub(crate) fn readable(dir: &Path) -> std::io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    Ok(accessat(CWD, dir, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// The settings in a text, and the place of each export's directory in it.
fn parse(text: &str) -> std::result::Result<(Settings, Vec<Range<usize>>), Problem> {
    let File { server, limits, exports } = toml::from_str(text)?;
    if exports.is_empty() {
        return Err(Problem::of_all("there is no export")
            .advice("add an [[export]] with the path of a directory"));
    }
    let mut settings = server.settings()?;
    settings.limits = limits.settings()?;
    let (mut names, mut places) = (Vec::new(), Vec::new());
    for export in exports {
        let place = export.path.span();
        let name_place = export.name.as_ref().map_or(place.clone(), Spanned::span);
        let export = export.settings()?;
        check_path(&export.name).map_err(|error| {
            Problem::at(name_place.clone(), format!("{:?} cannot be a name: {error}", export.name))
                .advice("write it like /images")
        })?;
        names.push((export.name.clone(), name_place));
        places.push(place);
        settings.exports.push(export);
    }
    let paths: Vec<&str> = names.iter().map(|(name, _)| &**name).collect();
    if let Some((outer, inner)) = clash(&paths) {
        // The error names the later export.
        let (_, place) = &names[outer.max(inner)];
        let what = match paths[outer] == paths[inner] {
            true => format!("two exports have the name {}", paths[inner]),
            false => format!("the export {} lies within the export {}", paths[inner], paths[outer]),
        };
        return Err(Problem::at(place.clone(), what).advice("give one of them another name"));
    }
    Ok((settings, places))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    server: Server,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default, rename = "export")]
    exports: Vec<Export>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Server {
    listen: OneOrMany<Text<Bind>>,
    budget: Option<Spanned<Text<Size>>>,
    stream_limit: Option<Text<Size>>,
    threads: Option<Spanned<usize>>,
    lease: Option<Spanned<u32>>,
    versions: Option<Spanned<OneOrMany<Version>>>,
    state_dir: Option<Spanned<PathBuf>>,
    rpcbind: bool,
    delegations: Option<bool>,
    delegated_times: bool,
    retry_journal: Option<bool>,
    metrics: Option<Spanned<Text<Bind>>>,
    id_domain: Option<Spanned<String>>,
    secure: Option<bool>,
    auth_none: Option<bool>,
    manage_gids: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    path: Spanned<PathBuf>,
    name: Option<Spanned<String>>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    squash: SquashArg,
    anon_uid: Option<u32>,
    anon_gid: Option<u32>,
    #[serde(default)]
    clients: OneOrMany<Client>,
    #[serde(default)]
    cache: CacheArg,
    #[serde(default)]
    durability: DurabilityArg,
}

/// Clients of a network: its text alone, or a table.
struct Client(ClientRule);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTable {
    network: Text<Network>,
    #[serde(default)]
    access: AccessArg,
    squash: Option<SquashArg>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AccessArg {
    None,
    ReadOnly,
    #[default]
    ReadWrite,
}

impl Server {
    fn settings(self) -> std::result::Result<Settings, Problem> {
        let default = Settings::default();
        if let Some(lease) = &self.lease
            && !LEASE_SECONDS.contains(lease.get_ref())
        {
            return Err(Problem::at(lease.span(), format!("a lease of {} s", lease.get_ref()))
                .advice("take one of 5 to 3600 seconds"));
        }
        let threads = match self.threads {
            Some(threads) => match NonZeroUsize::new(*threads.get_ref()) {
                Some(count) if count.get() <= MAX_THREADS => Some(count),
                _ => {
                    let what = format!("{} threads", threads.get_ref());
                    return Err(Problem::at(threads.span(), what)
                        .advice(format!("take 1 to {MAX_THREADS}, or leave it out")));
                }
            },
            None => None,
        };
        let versions = match self.versions {
            Some(versions) if versions.get_ref().0.is_empty() => {
                return Err(Problem::at(versions.span(), "no version is offered")
                    .advice("leave the key out to offer all"));
            }
            Some(versions) => versions
                .into_inner()
                .0
                .into_iter()
                .fold(Versions::empty(), |all, Version(version)| all | version),
            None => Versions::ALL,
        };
        if let Some(budget) = &self.budget {
            check_budget(Some(budget.get_ref().0))
                .map_err(|failure| Problem::at(budget.span(), failure.to_string()))?;
        }
        let state_dir = self.state_dir.map(whole_path).transpose()?;
        let metrics = match self.metrics {
            Some(at) => Some(at.get_ref().0.with_port().ok_or_else(|| {
                Problem::at(at.span(), "no port is given")
                    .advice("write it like \"127.0.0.1:9100\" or 9100")
            })?),
            None => None,
        };
        let id_domain = match self.id_domain {
            Some(domain) if domain.get_ref().is_empty() || domain.get_ref().contains('@') => {
                let what = format!("{:?} is no domain", domain.get_ref());
                return Err(Problem::at(domain.span(), what)
                    .advice("write it like \"example.org\", or leave it out for numbers"));
            }
            domain => domain.map(Spanned::into_inner),
        };
        Ok(Settings {
            listen: self.listen.0.into_iter().map(|text| text.0).collect(),
            budget: self.budget.map(|text| text.into_inner().0),
            stream_limit: self.stream_limit.map_or(default.stream_limit, |text| text.0),
            threads,
            lease: self
                .lease
                .map_or(default.lease, |lease| Duration::from_secs(u64::from(*lease.get_ref()))),
            versions,
            state_dir,
            rpcbind: self.rpcbind,
            delegations: self.delegations.unwrap_or(default.delegations),
            delegated_times: self.delegated_times,
            retry_journal: self.retry_journal.unwrap_or(default.retry_journal),
            metrics,
            id_domain,
            admission: AdmissionOptions {
                secure: self.secure.unwrap_or(default.admission.secure),
                auth_none: self.auth_none.unwrap_or(default.admission.auth_none),
                manage_gids: self.manage_gids.unwrap_or(default.admission.manage_gids),
            },
            limits: default.limits,
            exports: Vec::new(),
        })
    }
}

impl Export {
    fn settings(self) -> std::result::Result<ExportSettings, Problem> {
        let place = self.path.span();
        let dir = whole_path(self.path)?;
        let name = match self.name {
            Some(name) => name.into_inner(),
            None => match dir.to_str() {
                Some("/") | None => {
                    return Err(Problem::at(place, "this directory's path cannot be its name")
                        .advice("add a name, like name = \"/all\""));
                }
                Some(path) => path.to_owned(),
            },
        };
        Ok(ExportSettings {
            dir,
            name,
            read_only: self.read_only,
            squash: self.squash,
            anon_uid: self.anon_uid.unwrap_or(NOBODY),
            anon_gid: self.anon_gid.unwrap_or(NOBODY),
            clients: self.clients.0.into_iter().map(|client| client.0).collect(),
            cache: self.cache,
            durability: self.durability,
        })
    }
}

/// An absolute path.
fn whole_path(path: Spanned<PathBuf>) -> std::result::Result<PathBuf, Problem> {
    if path.get_ref().is_absolute() {
        return Ok(path.into_inner());
    }
    let what = format!("{} is not an absolute path", path.get_ref().display());
    Err(Problem::at(path.span(), what).advice("write the path from the root"))
}

/// A value that the file writes as a string.
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parse<T>(PhantomData<T>);

        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Parse<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, in quotes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                text.parse().map_err(|error| E::custom(format_args!("{text:?}: {error}")))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(Parse(PhantomData)).map(Self)
    }
}

/// A single value or a list.
struct OneOrMany<T>(Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one, or a list in brackets")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                Ok(all)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                Ok(vec![T::deserialize(text.into_deserializer())?])
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
                Ok(vec![T::deserialize(number.into_deserializer())?])
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Vec<T>, E> {
                Ok(vec![T::deserialize(number.into_deserializer())?])
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
                Ok(vec![T::deserialize(de::value::MapAccessDeserializer::new(map))?])
            }
        }

        deserializer.deserialize_any(Either(PhantomData)).map(Self)
    }
}

impl<'de> Deserialize<'de> for Client {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = ClientTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network like \"192.0.2.0/24\", or { network = ..., access = ... }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ClientTable, E> {
                let network = Text::deserialize(text.into_deserializer())?;
                Ok(ClientTable { network, access: AccessArg::ReadWrite, squash: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClientTable, A::Error> {
                ClientTable::deserialize(de::value::MapAccessDeserializer::new(map))
            }
        }

        let table = deserializer.deserialize_any(Either)?;
        Ok(Self(ClientRule {
            network: table.network.0,
            access: match table.access {
                AccessArg::None => ClientAccess::None,
                AccessArg::ReadOnly => ClientAccess::ReadOnly,
                AccessArg::ReadWrite => ClientAccess::ReadWrite,
            },
            squash: table.squash.map(Into::into),
        }))
    }
}

/// A version of the protocol: a text, or the number that it looks like.
struct Version(Versions);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Named;

        impl Visitor<'_> for Named {
            type Value = Versions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version: \"3\", \"4.0\", \"4.1\", \"4.2\", or \"4\" for all of 4")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Versions, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Versions, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Versions, E> {
                self.visit_str(&format!("{number:.1}"))
            }
        }

        deserializer.deserialize_any(Named).map(Self)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn counters_and_names_are_keys_too() {
        let with = |keys: &str| format!("[server]\n{keys}\n[[export]]\npath = \"/srv\"\n");
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(settings(&with("metrics = 9100")).metrics, at("127.0.0.1:9100"));
        let both = settings(&with("metrics = \"[::1]:9\"\nid_domain = \"example.org\""));
        assert_eq!((both.metrics, both.id_domain.as_deref()), (at("[::1]:9"), Some("example.org")));
        let neither = settings(&with(""));
        assert_eq!((neither.metrics, neither.id_domain), (None, None));
        for bad in ["metrics = \"127.0.0.1\"", "id_domain = \"a@b\"", "id_domain = \"\""] {
            assert!(parse(&with(bad)).is_err(), "{bad}");
        }
    }

    pub(crate) fn settings(text: &str) -> Settings {
        match parse(text) {
            Ok((settings, _)) => settings,
            Err(problem) => panic!("{}", problem.tell(Path::new("t"), text)),
        }
    }

    pub(crate) fn refused(text: &str) -> String {
        parse(text).unwrap_err().tell(Path::new("weir.toml"), text).to_string()
    }

    #[test]
    fn the_example_file_is_valid() {
        let text = include_str!("../../../../dist/weir.toml");
        let settings = settings(text);
        assert!(settings.exports.len() > 1);
        // Every key is in it.
        for key in ["listen", "budget", "stream_limit", "threads", "lease", "versions", "state_dir"]
            .into_iter()
            .chain(["rpcbind", "path", "name", "read_only", "squash", "anon_uid", "anon_gid"])
            .chain(["clients", "cache", "network", "access", "delegations", "durability"])
            .chain(["delegated_times", "retry_journal"])
        {
            assert!(text.contains(&format!("{key} =")), "{key}");
        }
    }

    #[test]
    fn every_key_is_accepted() {
        let all = settings(
            r#"
            [server]
            listen = ["0.0.0.0:2049", "[::]:2049"]
            budget = "50%"
            stream_limit = "1G"
            threads = 8
            lease = 45
            versions = [3, 4.2, "4.0"]
            state_dir = "/var/lib/weir"
            rpcbind = true
            delegations = false
            delegated_times = true
            retry_journal = false

            [[export]]
            path = "/srv/images"
            name = "/images"
            read_only = true
            squash = "all"
            anon_uid = 7
            anon_gid = 8
            clients = [
                "192.0.2.0/24",
                { network = "2001:db8::/32", access = "read-only", squash = "none" },
                { network = "*", access = "none" },
            ]
            cache = "auto"
            durability = "relaxed"

            [[export]]
            path = "/home"
            clients = "198.51.100.1"
            "#,
        );
        assert_eq!(all.listen[1].to_string(), "[::]:2049");
        assert_eq!(
            (all.budget, all.stream_limit),
            (Some(Size::Percent(50.0)), Size::Bytes(1 << 30))
        );
        assert_eq!((all.threads.map(NonZeroUsize::get), all.lease.as_secs()), (Some(8), 45));
        assert_eq!(all.versions, Versions::V3 | Versions::V4_0 | Versions::V4_2);
        assert!(all.rpcbind && !all.delegations && all.delegated_times && all.state_dir.is_some());
        assert!(!all.retry_journal);
        let [images, home] = &all.exports[..] else { panic!() };
        assert_eq!((&*images.name, images.read_only, images.anon_gid), ("/images", true, 8));
        assert_eq!((images.squash, images.cache), (SquashArg::All, CacheArg::Auto));
        let durability = (images.durability, home.durability);
        assert_eq!(durability, (DurabilityArg::Relaxed, DurabilityArg::Sync));
        let access: Vec<_> = images.clients.iter().map(|rule| rule.access).collect();
        assert_eq!(access, [ClientAccess::ReadWrite, ClientAccess::ReadOnly, ClientAccess::None]);
        assert_eq!((&*home.name, home.anon_uid, home.clients.len()), ("/home", NOBODY, 1));
        let least = settings("[[export]]\npath = \"/a\"");
        assert_eq!(Settings { exports: Vec::new(), ..least }, Settings::default());
    }

    #[test]
    fn errors_are_reported_with_position_and_advice() {
        let export = "[[export]]\npath = \"/a\"\n";
        for (text, said) in [
            ("", "weir.toml: there is no export; add an [[export]]"),
            ("[server]\nbudgt = \"1G\"", ":2:1: unknown key `budgt`; did you mean `budget`?"),
            ("[sever]", ":1:2: unknown key `sever`; did you mean `server`?"),
            ("[[export]]\npath = \"/a\"\nroot = 1", ":3:1: unknown key `root`; valid are path,"),
            ("[[export]]\nname = \"/a\"", ":1:1: an export without a directory; add path"),
            (
                "[export]\npath = \"/a\"",
                ":1:1: [export] is one table, and there may be several; write",
            ),
            (
                "[[export]]\npath = \"/a\"\nread_only = \"yes\"",
                ":3:13: \"yes\" where true or false",
            ),
            ("[[export]]\npath = 5", ":2:8: 5 where a string is needed; put it in quotes"),
            ("[[export]]\npath = \"/a\"\nanon_uid = -1", ":3:12: -1 is too small or too large"),
            ("[server]\nbudget = 3", ":2:10: cannot use a budget of 3 B: a page cache takes 16.00"),
            ("[server]\nbudget = \"15E\"", ":2:10: cannot use a budget of 15.00 EiB: this machine"),
            ("[[export]]\npath = \"a\"", ":2:8: a is not an absolute path"),
            ("[[export]]\npath = \"/\"", ":2:8: this directory's path cannot be its name; add"),
            ("[server]\nbudget = \"much\"", ":2:10: \"much\": not a size; write it like"),
            ("[server]\nlease = 1", ":2:9: a lease of 1 s; take one of 5 to 3600"),
            ("[server]\nlease = \"x\"", ":2:9: \"x\" where a whole number is needed; write"),
            ("[server]\nthreads = 0", ":2:11: 0 threads; take 1 to 1024"),
            ("[server]\nlisten = [\"here\"]", ":2:11: \"here\": write it like 0.0.0.0:2049"),
            ("[server]\nversions = [4.3]", ":2:13: no such version: 4.3"),
            ("[server]\nversions = []", ":2:12: no version is offered"),
            ("[server]\nbudget = ", ":2:10: "),
            (
                "[[export]]\npath = \"/a\"\nsquash = \"rot\"",
                ":3:10: unknown value `rot`; did you mean `root`?",
            ),
            (
                "[[export]]\npath = \"/a\"\nname = \"b\"",
                ":3:8: \"b\" cannot be a name: it has to begin with a slash; write",
            ),
            (
                "[[export]]\npath = \"/a\"\nclients = [\"1.2.3.4/8\"]",
                ":3:12: \"1.2.3.4/8\": the address has bits beyond its prefix; did you mean 1.0.0.0/8?",
            ),
            (
                "[[export]]\npath = \"/a\"\nclients = [{ network = \"*\", acess = \"none\" }]",
                ":3:29: unknown key `acess`; did you mean `access`?",
            ),
            (
                &format!("{export}[[export]]\npath = \"/b\"\nname = \"/a\""),
                ":5:8: two exports have the name /a",
            ),
            (
                &format!("[[export]]\npath = \"/a/b\"\n{export}"),
                ":4:8: the export /a/b lies within the export /a; give",
            ),
        ] {
            // Each with an export, so that this is not what is missed.
            let exports = text.contains("[[export]]") || text.starts_with("[export]");
            let text = match exports || text.is_empty() {
                true => text.to_owned(),
                false => format!("{text}\n{export}"),
            };
            let refused = refused(&text);
            let place = said.strip_prefix("weir.toml").unwrap_or(said);
            let expected = format!("cannot use the configuration: weir.toml{place}");
            assert!(refused.starts_with(&expected), "{text}\n{refused}\n{expected}");
        }
    }

    #[test]
    fn missing_directories_are_reported_with_their_position() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("weir.toml");
        let write = |path: &Path| {
            let text = format!("[server]\n\n[[export]]\npath = {path:?}\nname = \"/x\"\n");
            std::fs::write(&file, text).unwrap();
        };
        write(&dir.path().join("none"));
        let refused = load(&file).unwrap_err().to_string();
        assert!(refused.contains("weir.toml:4:8: ") && refused.contains("create the directory"));
        write(&file);
        assert!(load(&file).unwrap_err().to_string().contains("is not a directory"));
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        write(&dir.path().join("link"));
        assert_eq!(load(&file).unwrap().exports[0].dir, dir.path().canonicalize().unwrap());
    }
}
