//! Arguments that several commands share: locations, mount options, names out of a list.

use clap::builder::{
    OsStringValueParser, PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser,
};
use std::error::Error;
use weir_client::MountOptions;
use weir_tools::failure::{Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::Mounts;
use weir_tools::size::Size;

/// Arguments of every command that opens locations.
#[derive(clap::Args)]
pub(crate) struct MountArgs {
    /// Mount options for nfs:// locations, as for mount.nfs: vers=, rsize=, wsize=, nconnect=,
    /// timeo=, soft, noreadplus, uncached, port=, mountport=; options in a URL take precedence
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Memory for the page cache: 512M, 2GiB, or 50% of memory [default: a quarter of memory, at
    /// most 512M]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,
}

impl MountArgs {
    /// An empty set of mounts with these options.
    pub(crate) fn mounts(&self) -> Result<Mounts> {
        Mounts::new(self.budget, self.options()?)
    }

    /// The memory asked for.
    pub(crate) fn budget(&self) -> Option<Size> {
        self.budget
    }

    /// The options given with `-o`.
    pub(crate) fn options(&self) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for list in &self.options {
            options.apply(list).map_err(|e| Failure::new("use -o", e.to_string()))?;
        }
        Ok(options)
    }

    /// Whether `-o` asks for a mount without programs: the last of `exec`, `noexec`, and `user` and `users`, which
    /// imply `noexec`. Source: mount(8).
    pub(crate) fn refuses_programs(&self) -> bool {
        let names = self.options.iter().flat_map(|list| list.split(','));
        let mut names = names.map(|option| option.split('=').next().unwrap_or_default());
        let last = names.rfind(|name| ["exec", "noexec", "user", "users"].contains(name));
        last.is_some_and(|name| name != "exec")
    }
}

/// Whether to print JSON, and by which version of its schema (docs/JSON.md).
#[derive(clap::Args)]
pub(crate) struct JsonArgs {
    /// Print the result as JSON; a version pins the schema, which docs/JSON.md describes
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = clap::value_parser!(u8).range(1..=1))]
    json: Option<u8>,
}

impl JsonArgs {
    /// Whether JSON is wanted.
    pub(crate) fn wanted(&self) -> bool {
        self.json.is_some()
    }
}

/// Parses a location, which may contain any bytes.
pub(crate) fn location() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(Location::parse)
}

/// Parses a number of bytes: a size, but no share of one.
pub(crate) fn bytes() -> impl TypedValueParser<Value = u64> {
    StringValueParser::new().try_map(|text| match text.parse()? {
        Size::Bytes(bytes) => Ok::<_, Box<dyn Error + Send + Sync>>(bytes),
        Size::Percent(_) => Err("there is nothing that it could be a share of".into()),
    })
}

/// Parses one name out of a list; each has a help text (possibly empty) and a value.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, help, _)| match *help {
        "" => PossibleValue::new(*name),
        help => PossibleValue::new(*name).help(help),
    });
    PossibleValuesParser::new(names).try_map(move |text| {
        let found = values.iter().find(|(name, ..)| *name == text);
        found.map(|(.., value)| *value).ok_or("there is no such name")
    })
}
