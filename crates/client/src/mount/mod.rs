//! Mounting a URL: addresses, version negotiation, the path's root.

use crate::error::{Error, Result};
use crate::protocol::{Protocol, ProtocolConfig, Reach, Root, auth_sys};
use crate::transport::{Counters, Patience, Peer};
use crate::v3::V3;
use crate::v4::client::V4;
use crate::{MountOptions, NfsUrl, Version};
use std::sync::Arc;
use std::time::Duration;
use weir_rpc::OpaqueAuth;

/// A mounted export.
pub(crate) struct Mounted {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) version: Version,
    pub(crate) root: Root,
    pub(crate) counters: Arc<Counters>,
}

/// NFS's port.
const PORT: u16 = 2049;
/// How long the end of a mount waits for a server; if the server is down, it drops the state when
/// the lease expires.
pub(crate) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Mounts with the newest version that both sides support.
pub(crate) async fn mount(
    url: NfsUrl,
    reach: Reach,
    options: MountOptions,
    own: OpaqueAuth,
) -> Result<Mounted> {
    let config = protocol_config(&url, options, own).await?;
    let asked = config.options.versions();
    let begun = config.peer.first(async {
        for version in &asked {
            if let Some((protocol, root)) = begin(&config, *version, &url, reach).await? {
                let counters = Arc::clone(&config.counters);
                return Ok(Some(Mounted { protocol, version: *version, root, counters }));
            }
        }
        Ok(None)
    });
    if let Some(mounted) = begun.await? {
        return Ok(mounted);
    }
    let asked = asked.iter().map(Version::to_string).collect::<Vec<_>>().join(", ");
    Err(Error::Version { server: config.peer.name, asked })
}

/// A directory that a server exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Its path.
    pub path: Vec<u8>,
    /// The networks, hosts or groups that may mount it, as the server names them; none: all.
    pub clients: Vec<Vec<u8>>,
}

/// Lists what a server exports, by its MOUNT service (RFC 1813 appendix I section 5.5).
///
/// # Errors
/// The server cannot be reached, or has no such service: those of version 4 alone have none.
pub async fn exports(url: &NfsUrl, options: &MountOptions) -> Result<Vec<Exported>> {
    let options = MountOptions { nconnect: 1, ..url.options(options)? };
    let (uid, gid, groups) = options.identity();
    let own = auth_sys(uid, gid, &groups);
    let config = protocol_config(url, options, own).await?;
    let asked = config.peer.first(async {
        match V3::begin(&config).await? {
            Some(v3) => v3.exports(&config).await.map(Some),
            None => Ok(None),
        }
    });
    let Some(exported) = asked.await? else {
        return Err(Error::Version { server: config.peer.name, asked: "3".into() });
    };
    let of = |export: weir_nfs::mount::Exported| Exported {
        path: export.path.to_vec(),
        clients: export.groups.0.iter().map(|name| name.to_vec()).collect(),
    };
    Ok(exported.into_iter().map(of).collect())
}

/// Looks up the server's addresses, and returns the configuration for talking to it.
pub(crate) async fn protocol_config(
    url: &NfsUrl,
    options: MountOptions,
    own: OpaqueAuth,
) -> Result<ProtocolConfig> {
    let port = options.port.unwrap_or(PORT);
    let name: Arc<str> = match url.host.contains(':') {
        true => format!("[{}]:{port}", url.host).into(),
        false => format!("{}:{port}", url.host).into(),
    };
    let unreachable =
        |source| Error::Connect { server: Arc::clone(&name), source: Arc::new(source) };
    let addrs = tokio::net::lookup_host((url.host.as_str(), port)).await.map_err(unreachable)?;
    Ok(ProtocolConfig {
        peer: Peer {
            name: Arc::clone(&name),
            addrs: addrs.collect(),
            resvport: options.resvport,
            locate: None,
            answered: Arc::default(),
            heard: Arc::default(),
        },
        patience: Patience { timeo: options.timeo, retrans: options.retrans, hard: options.hard },
        counters: Arc::default(),
        own,
        options,
    })
}

/// `None` if the server does not offer the version.
async fn begin(
    config: &ProtocolConfig,
    version: Version,
    url: &NfsUrl,
    reach: Reach,
) -> Result<Option<(Arc<dyn Protocol>, Root)>> {
    match version.minor() {
        Some(minor) => {
            let Some(protocol) = V4::begin(config, minor).await? else { return Ok(None) };
            let root = protocol.root(&url.path, reach).await;
            rooted(protocol, root).await
        }
        None => {
            let Some(protocol) = V3::begin(config).await? else { return Ok(None) };
            let root = protocol.root(config, &url.path, reach).await;
            rooted(protocol, root).await
        }
    }
}

/// Finds the root; if that fails, ends the connection's state, so that nothing of it is left at the
/// server.
async fn rooted(
    protocol: Arc<dyn Protocol>,
    root: Result<Root>,
) -> Result<Option<(Arc<dyn Protocol>, Root)>> {
    match root {
        Ok(root) => Ok(Some((protocol, root))),
        Err(error) => {
            let _ = tokio::time::timeout(UNMOUNT_TIMEOUT, protocol.unmount()).await;
            protocol.end_connections();
            Err(error)
        }
    }
}
