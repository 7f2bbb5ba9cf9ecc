//! The two sides of a read, server and client, and control of the server's cache.

use super::guest::Guest;
use super::network::{Network, Rate};
use super::options::{ClientKind, Options};
use super::reader;
use super::report::Reading;
use crate::peers::{Host, Peer, Running, Wanted};
use crate::process;
use crate::scratch::{Image, Scratch, forget};
use serde_json::Value;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_client::{NfsUrl, Version};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::kernel_cache::cached;
use weir_tools::text::size_text;

/// A server's name in the report.
pub(crate) fn name_of(server: &Wanted) -> String {
    match server {
        Wanted::Weir => "weir".into(),
        Wanted::WeirRelaxed => "weir-relaxed".into(),
        Wanted::Ganesha => "ganesha".into(),
        Wanted::Knfsd => "knfsd".into(),
        Wanted::Url(url) => url.to_string(),
    }
}

/// The state of a file in the server's cache before the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing of it is in memory.
    Uncached,
    /// All of its data is.
    Cached,
}

/// How to control and examine the server's cache.
enum Keeper {
    /// A Weir that was started here: through its control channel.
    Weir,
    /// A server that reads through the kernel's cache of this machine, from this directory.
    Kernel(PathBuf),
    /// The kernel in the guest.
    Guest,
}

/// A server and a client, ready to read.
pub(crate) struct Sides {
    // In drop order.
    server: Option<Peer>,
    guest: Option<Guest>,
    _network: Option<Network>,
    url: NfsUrl,
    /// The path for version 3, if it differs.
    v3_url: Option<NfsUrl>,
    keeper: Keeper,
    client: ClientKind,
    host: Host,
    _scratch: Scratch,
}

/// Time limit for a guest to read its file; guest and link may be slow.
const GUEST_READS: Duration = Duration::from_secs(3600);
const GUEST_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

impl Sides {
    /// Starts both for the files in `dir`, which is on `image` if one was created.
    pub(crate) fn start(
        args: &Options,
        rate: Rate,
        dir: &Path,
        image: &mut Option<Image>,
    ) -> Result<Self> {
        let scratch = Scratch::named(&std::env::temp_dir(), "sides")?;
        let (control, state) = (scratch.dir("control")?, scratch.dir("state")?);
        let mut keeper = Keeper::Kernel(dir.to_path_buf());
        let (mut guest, mut network) = (None, None);
        let (mut at_server, mut at_client) = (Host::LOCAL, Host::LOCAL);
        if args.client.in_guest() || args.server == Wanted::Knfsd {
            if args.client.in_guest() && args.server == Wanted::Knfsd {
                let failure = Failure::new("measure", "both sides would be in the guest");
                return Err(failure.advice("choose another server or another client"));
            }
            let disk = match (&args.server, image.as_mut()) {
                (Wanted::Knfsd, Some(image)) => {
                    image.unmount()?;
                    Some(image.path().canonicalize().asked(|| "find the image".into())?)
                }
                (Wanted::Knfsd, None) => {
                    let failure = Failure::new("serve with knfsd", "the guest needs a file system");
                    return Err(failure.advice("choose one with --fs that is made for it"));
                }
                _ => None,
            };
            let mem_mib = (args.file_bytes >> 20) + (args.file_bytes >> 21) + 512;
            let booted = Guest::boot(&control, disk.as_deref(), mem_mib, rate)?;
            (at_server, at_client) = (booted.native(), booted.native());
            guest = Some(booted);
        } else if rate != Rate::Unlimited && !matches!(args.server, Wanted::Url(_)) {
            let made = Network::make(rate)?;
            (at_server, at_client) = (made.server(), made.client());
            network = Some(made);
        }
        let (mut server, mut url, mut v3_url) = (None, None, None);
        match &args.server {
            Wanted::Weir => {
                // Room for the largest file, so that cached files stay.
                let budget = args.file_bytes + args.file_bytes / 8 + (64 << 20);
                server = Some(Peer::weir(&at_server, dir, &state, Some(budget))?);
                keeper = Keeper::Weir;
            }
            Wanted::WeirRelaxed => {
                let failure = Failure::new("measure READ_PLUS", "durability matters to no read");
                return Err(failure.advice("name weir"));
            }
            Wanted::Ganesha => server = Some(Peer::ganesha(&at_server, dir, &state)?),
            Wanted::Knfsd => {
                let within = dir.strip_prefix(image.as_ref().map_or(dir, |i| i.mount_point()));
                let within = within.unwrap_or(dir).display().to_string();
                let booted =
                    guest.as_mut().ok_or_else(|| Failure::new("start knfsd", "no guest"))?;
                booted.ask(&format!("knfsd /dev/ubda {within}"), Duration::from_secs(60))?;
                keeper = Keeper::Guest;
                url = Some(format!("nfs://{GUEST_ADDRESS}/"));
                v3_url = Some(parse(&format!("nfs://{GUEST_ADDRESS}/run/exp"))?);
            }
            Wanted::Url(given) => {
                let mut given = given.clone();
                let within = dir.iter().rev().take(2).map(|c| c.as_encoded_bytes().to_vec());
                given.path.extend(within.collect::<Vec<_>>().into_iter().rev());
                url = Some(given.to_string());
            }
        }
        let url = match (url, &server) {
            (Some(url), _) => parse(&url)?,
            (None, Some(server)) => server.url.clone(),
            (None, None) => return Err(Failure::new("measure", "there is no server")),
        };
        Ok(Self {
            server,
            guest,
            _network: network,
            url,
            v3_url,
            keeper,
            client: args.client,
            host: at_client,
            _scratch: scratch,
        })
    }

    /// Whether the server supports a version, as far as is known without a try.
    pub(crate) fn speaks(&self, version: Version) -> bool {
        self.server.as_ref().is_none_or(|server| !server.lacks.contains(&version))
    }

    /// Brings a file with this much data into a state at the server, and verifies that.
    pub(crate) fn bring_into(&mut self, state: State, name: &str, data_bytes: u64) -> Result<()> {
        let verb = if state == State::Cached { "load" } else { "drop" };
        let said = match (&self.keeper, &mut self.server, &mut self.guest) {
            (Keeper::Weir, Some(server), _) => server.control(&format!("{verb} {name}"))?,
            (Keeper::Guest, _, Some(guest)) => guest.ask(&format!("{verb} {name}"), GUEST_READS)?,
            (Keeper::Kernel(dir), ..) => in_kernel_cache(state, &dir.join(name))?,
            _ => return Err(Failure::new("control the server's cache", "there is no server")),
        };
        let resident = number(&said, "resident_bytes")? as u64;
        let (wrong, wanted) = match state {
            State::Uncached => (resident > 0, "none"),
            State::Cached => (resident < data_bytes, "all"),
        };
        if wrong {
            let failed = format!("{} of its {} are", size_text(resident), size_text(data_bytes));
            return Err(Failure::new(
                format!("have {wanted} of {name} in the server's cache"),
                failed,
            ));
        }
        Ok(())
    }

    /// Reads a file of `size` bytes with a client without cached data.
    pub(crate) fn read(&mut self, name: &str, version: Version, size: u64) -> Result<Reading> {
        let before = self.server.as_ref().and_then(Peer::processor_seconds);
        let said = match (self.client, &mut self.guest) {
            (client, Some(guest)) if client.in_guest() => {
                let (port, dd) = (self.url.port.unwrap_or(2049), client.dd());
                guest.ask(&format!("read_file {version} {port} {name} {dd}"), GUEST_READS)?
            }
            _ => {
                let other = self.v3_url.as_ref().filter(|_| version == Version::V3);
                let settings = reader::Settings {
                    url: other.unwrap_or(&self.url).to_string(),
                    name: name.into(),
                    version: version.to_string(),
                };
                let mut command = self.host.command(process::program()?);
                command.args(process::arguments(reader::NAME, &settings)?);
                let mut reader = Running::start(&mut command)?;
                let said = reader.answer()?;
                reader.ends_within(Duration::from_secs(10));
                said
            }
        };
        let after = self.server.as_ref().and_then(Peer::processor_seconds);
        if number(&said, "read_bytes")? as u64 != size {
            return Err(Failure::new(
                format!("read {name}"),
                format!("the client did not read all of it: {said}"),
            ));
        }
        Ok(Reading {
            seconds: number(&said, "seconds")?,
            received_bytes: number(&said, "received_bytes")? as u64,
            client_cpu_s: said["cpu_s"].as_f64(),
            server_cpu_s: after.zip(before).map(|(after, before)| after - before),
        })
    }
}

fn parse(url: &str) -> Result<NfsUrl> {
    url.parse().map_err(|e: weir_client::Error| Failure::new("name the server", e.to_string()))
}

fn number(said: &Value, key: &str) -> Result<f64> {
    let missing = || Failure::new("understand an answer", format!("no {key} in {said}"));
    said[key].as_f64().ok_or_else(missing)
}

/// Brings a file into this state in the kernel's cache of this machine.
fn in_kernel_cache(state: State, path: &Path) -> Result<Value> {
    let asked = || format!("control the kernel's cache of {}", path.display());
    let mut file = File::open(path).asked(asked)?;
    match state {
        State::Uncached => forget(path)?,
        State::Cached => drop(std::io::copy(&mut file, &mut std::io::sink()).asked(asked)?),
    }
    let size = file.metadata().asked(asked)?.len();
    let found = cached(&file, size, std::iter::empty()).ok_or_else(|| {
        Failure::new(asked(), "this kernel does not report which pages it caches")
    })?;
    Ok(serde_json::json!({ "resident_bytes": found.bytes }))
}

/// The name of the file system that a directory is on.
pub(crate) fn file_system_name(dir: &Path) -> String {
    const NAMES: [(i64, &str); 5] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794C_7630, "overlay"),
    ];
    let kind = rustix::fs::statfs(dir).map(|s| s.f_type).unwrap_or_default();
    NAMES.iter().find(|(magic, _)| *magic == kind).map_or("own", |(_, name)| name).into()
}
