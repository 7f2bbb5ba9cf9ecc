//! The output at start: exports, mount commands, and warnings, which a reload repeats.

use super::listen::NFS_PORT;
use crate::config::{CacheArg, DurabilityArg, ExportSettings, LimitSettings, Settings, SquashArg};
use crate::output::{print, print_json, print_json_line, text_and_hex, without_nulls};
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_server::export::{ClientAccess, ClientRule};
use weir_server::{AdmissionOptions, ServerConfig};
use weir_tools::failure::Result;
use weir_tools::text::size_text;

/// Prints the exports and how to mount them at these addresses.
pub(super) fn started(
    settings: &Settings,
    state_dir: &Path,
    addresses: &[SocketAddr],
    json: bool,
) -> Result<()> {
    warn(settings, addresses);
    let asked_port = settings.listen.iter().any(|bind| bind.port.is_some());
    if let Some(address) = addresses.first().filter(|a| !asked_port && a.port() != NFS_PORT) {
        tracing::warn!("port {NFS_PORT} is not available, using {}", address.port());
    }
    let Some(first) = addresses.first() else { return Ok(()) };
    let (host, port) = (reachable_host(first.ip()), first.port());
    let whole = format!("mount -t nfs -o vers=4.2,proto=tcp,port={port} {host}:/ /mnt");
    // A client learns the lock manager's port from rpcbind only.
    let nolock = if settings.rpcbind { "" } else { ",nolock" };
    let single = |export: &ExportSettings| {
        format!(
            "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp{nolock} \
             {host}:{} /mnt",
            export.name
        )
    };
    if json {
        let exports: Vec<Value> = settings.exports.iter().map(export_json).collect();
        let mounts: Vec<String> =
            [whole].into_iter().chain(settings.exports.iter().map(single)).collect();
        let (state_dir, state_dir_hex) = text_and_hex(state_dir.as_os_str().as_bytes());
        let value = without_nulls(json!({
            "address": first.ip(),
            "port": port,
            "addresses": addresses,
            "url": format!("nfs://{host}:{port}/"),
            "budget_bytes": settings.budget_bytes(),
            "state_dir": state_dir,
            "state_dir_hex": state_dir_hex,
            "exports": exports,
            "mount": mounts,
        }));
        return print_json_line(&value).map(drop);
    }
    let budget = size_text(settings.budget_bytes());
    let text = match &settings.exports[..] {
        [only] if only.name == "/" => format!(
            "Serving {dir} at {first}, {mode}, with {budget} of page cache.\n\
             Mount it with one of\n  {whole}\n  {}\n",
            single(only),
            dir = only.dir.display(),
            mode = match (only.read_only, only.durability) {
                (true, _) => "read-only",
                (false, DurabilityArg::Sync) => "for reading and writing",
                (false, DurabilityArg::Relaxed) => "for reading and writing, relaxed durability",
            },
        ),
        several => {
            let lines: String =
                several.iter().map(|export| format!("  {}\n", export_line(export))).collect();
            let example = several.first().map(single).unwrap_or_default();
            format!(
                "Serving at {first}, with {budget} of page cache:\n{lines}\
                 Mount all exports, or one of them, with\n  {whole}\n  {example}\n"
            )
        }
    };
    let url = format!("nfs://{host}:{port}/");
    let text = format!("{text}or use it as {url}, for example\n  weir ls -l {url}\n");
    print(text.as_bytes())?;
    Ok(())
}

/// Prints the settings of a configuration.
pub(super) fn checked(settings: &Settings, json: bool) -> Result<()> {
    let listen: Vec<String> = settings.listen.iter().map(ToString::to_string).collect();
    if json {
        let bytes = settings.state_dir.as_ref().map(|dir| text_and_hex(dir.as_os_str().as_bytes()));
        let (state_dir, state_dir_hex) = bytes.unzip();
        print_json(&without_nulls(json!({
            "listen": listen,
            "budget_bytes": settings.budget_bytes(),
            "stream_limit_bytes": settings.stream_limit.of(settings.budget_bytes()),
            "threads": settings.threads,
            "lease_seconds": settings.lease.as_secs(),
            "versions": settings.versions.to_string(),
            "state_dir": state_dir,
            "state_dir_hex": state_dir_hex.flatten(),
            "rpcbind": settings.rpcbind,
            "secure": settings.admission.secure,
            "auth_none": settings.admission.auth_none,
            "manage_gids": settings.admission.manage_gids,
            "limits": limits(settings)
                .into_iter()
                .map(|(key, value, _)| (key.to_owned(), value.into()))
                .collect::<serde_json::Map<_, _>>(),
            "exports": settings.exports.iter().map(export_json).collect::<Vec<_>>(),
        })))?;
        return Ok(());
    }
    let listen = match &listen[..] {
        [] => format!("127.0.0.1:{NFS_PORT}, or the next free port"),
        some => some.join(", "),
    };
    let threads =
        settings.threads.map_or("one for each processor".into(), |threads| threads.to_string());
    let mut text = format!(
        "listen    {listen}\n\
         budget    {budget}; streams longer than {limit} are long\n\
         threads   {threads}\n\
         lease     {lease} s\n\
         versions  {versions}\n\
         state     {state}\n\
         rpcbind   {rpcbind}\n\
         trusts    {believes}\n",
        budget = size_text(settings.budget_bytes()),
        limit = size_text(settings.stream_limit.of(settings.budget_bytes())),
        lease = settings.lease.as_secs(),
        versions = settings.versions,
        state = match &settings.state_dir {
            Some(dir) => dir.to_string_lossy(),
            None => "the default directory".into(),
        },
        believes = believes(settings.admission),
        rpcbind = if settings.rpcbind { "registered" } else { "not registered" },
    );
    for (number, (key, _, value)) in limits(settings).into_iter().enumerate() {
        let title = if number == 0 { "limits" } else { "" };
        text.push_str(&format!("{title:10}{key} {value}\n"));
    }
    for export in &settings.exports {
        text.push_str(&format!("export    {}\n", export_line(export)));
        for rule in &export.clients {
            text.push_str(&format!("            for {}\n", rule_text(rule)));
        }
    }
    print(text.as_bytes())?;
    Ok(())
}

/// Each limit: its key, its value, and that as a text.
fn limits(settings: &Settings) -> Vec<(&'static str, u64, String)> {
    let mut config = ServerConfig::new(Vec::new(), "");
    settings.limits.apply(&mut config);
    if !settings.delegations {
        config.state.delegations = 0;
    }
    LimitSettings::of(&config)
}

fn believes(AdmissionOptions { secure, auth_none, manage_gids }: AdmissionOptions) -> String {
    format!(
        "{}; {}; groups from {}",
        if secure {
            "privileged ports, and this machine's users as themselves"
        } else {
            "any client"
        },
        if auth_none { "AUTH_NONE is the anonymous user" } else { "AUTH_NONE is refused" },
        if manage_gids { "this machine" } else { "clients" },
    )
}

fn export_line(export: &ExportSettings) -> String {
    let ExportSettings { dir, name, squash, anon_uid, anon_gid, cache, .. } = export;
    let mode = match (export.read_only, export.durability) {
        (true, _) => "read-only",
        (false, DurabilityArg::Sync) => "read-write",
        (false, DurabilityArg::Relaxed) => "read-write, relaxed durability",
    };
    let squash = match squash {
        SquashArg::Root => format!("root is {anon_uid}:{anon_gid}"),
        SquashArg::All => format!("every user is {anon_uid}:{anon_gid}"),
        SquashArg::None => "root is root".into(),
    };
    let cache = match cache {
        CacheArg::Cached => "cached",
        CacheArg::Uncached => "uncached",
        CacheArg::Auto => "cached except long streams",
    };
    format!("{name}  {}  {mode}, {squash}, {cache}", dir.display())
}

fn rule_text(rule: &ClientRule) -> String {
    let access = match rule.access {
        ClientAccess::None => "nothing",
        ClientAccess::ReadOnly => "read-only",
        ClientAccess::ReadWrite => "read-write",
    };
    let squash = rule.squash.map_or(String::new(), |squash| format!(", squash {squash:?}"));
    format!("{}: {access}{}", rule.network, squash.to_lowercase())
}

fn export_json(export: &ExportSettings) -> Value {
    let squash = format!("{:?}", export.squash).to_lowercase();
    let cache = format!("{:?}", export.cache).to_lowercase();
    let durability = format!("{:?}", export.durability).to_lowercase();
    let (path, path_hex) = text_and_hex(export.dir.as_os_str().as_bytes());
    json!({
        "path": path,
        "path_hex": path_hex,
        "name": export.name,
        "read_only": export.read_only,
        "squash": squash,
        "anon_uid": export.anon_uid,
        "anon_gid": export.anon_gid,
        "cache": cache,
        "durability": durability,
        "clients": export.clients.iter().map(rule_text).collect::<Vec<_>>(),
    })
}

/// Warns of what the exports let clients do, or do not, that may not be meant.
pub(super) fn warn(settings: &Settings, addresses: &[SocketAddr]) {
    let open = |export: &ExportSettings| {
        export.clients.is_empty() && !(export.read_only && export.squash == SquashArg::All)
    };
    let beyond = addresses.iter().find(|address| !address.ip().is_loopback());
    if let Some(open) = settings.exports.iter().find(|export| open(export)) {
        let name = &open.name;
        match (beyond, settings.admission.secure) {
            (Some(beyond), true) => tracing::warn!(
                "listening beyond loopback: the superuser of any machine that reaches {beyond} \
                 may act as any user on {name}; use a firewall, list the clients' networks, or \
                 squash all users and export it read-only"
            ),
            (Some(beyond), false) => tracing::warn!(
                "listening beyond loopback without `secure`: every program that reaches {beyond} \
                 may act as any user on {name}; use a firewall, list the clients' networks, or \
                 squash all users and export it read-only"
            ),
            (None, false) => tracing::warn!(
                "serving without `secure`: every user of this machine may act as any user on \
                 {name}, including {}",
                if geteuid().is_root() { "the superuser, unless squashed" } else { "you" }
            ),
            (None, true) => {}
        }
    }
    let relaxed =
        |export: &&ExportSettings| !export.read_only && export.durability == DurabilityArg::Relaxed;
    for export in settings.exports.iter().filter(relaxed) {
        tracing::warn!(
            "durability is relaxed in {}: a power failure may undo creates, removes, renames and \
             changes that the server acknowledged as durable in the last seconds",
            export.name
        );
    }
    for export in settings.exports.iter().filter(|export| !export.read_only) {
        warn_of_squash(export);
    }
}

/// Warns if the user that clients' root is squashed to cannot write: the first test of a new export
/// is often a copy by root.
fn warn_of_squash(export: &ExportSettings) {
    let who = match export.squash {
        // A server that does not run as root makes all calls as its own user.
        SquashArg::None => return,
        _ if !geteuid().is_root() => return,
        SquashArg::Root => "clients' root",
        SquashArg::All => "every user of clients",
    };
    let Ok(dir) = export.dir.metadata() else { return };
    let (uid, gid) = (export.anon_uid, export.anon_gid);
    let bits = match dir.uid() == uid {
        true => 0o300,
        false if dir.gid() == gid => 0o030,
        false => 0o003,
    };
    // An ACL may allow what the mode does not; then this warning is wrong.
    if uid != 0 && dir.mode() & bits != bits {
        tracing::warn!(
            "{who} is squashed to user {uid} in {}, which may not write to {}: copy as another user, \
             chown it to {uid}:{gid}, or serve it with --squash none (squash = \"none\")",
            export.name,
            export.dir.display()
        );
    }
}

/// The host in URLs for clients: this machine's name if the server listens on all addresses.
fn reachable_host(ip: IpAddr) -> String {
    match ip {
        ip if ip.is_unspecified() => {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        }
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}
