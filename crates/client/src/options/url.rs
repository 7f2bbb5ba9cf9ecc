//! `nfs://host[:port]/path[?options]` (RFC 2224, with mount options as the query).

use crate::{Error, MountOptions, Result};
use std::fmt;
use std::str::FromStr;

/// The location of an export, and the options for mounting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port, if the URL has one.
    pub port: Option<u16>,
    /// Components of the path, from the server's root.
    pub path: Vec<Vec<u8>>,
    /// A slash follows the last component: it is a directory, or a symbolic link to one.
    pub ends_in_slash: bool,
    /// The query as given, for [`MountOptions::apply`].
    pub query: String,
}

impl NfsUrl {
    /// `base` with the URL's query and port applied.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn options(&self, base: &MountOptions) -> Result<MountOptions> {
        let mut options = base.clone();
        options.apply(&self.query)?;
        options.port = options.port.or(self.port);
        Ok(options)
    }

    /// The parent directory and the last component, unless this is the server's root.
    pub fn split_last(&self) -> Option<(Self, Vec<u8>)> {
        let mut parent = Self { ends_in_slash: false, ..self.clone() };
        let name = parent.path.pop()?;
        Some((parent, name))
    }
}

impl FromStr for NfsUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        let bad = |reason: &'static str| Error::Url { url: url.to_owned(), reason: reason.into() };
        let rest = match url.split_at_checked(SCHEME.len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => rest,
            _ => {
                let reason = match suggestion(url) {
                    Some(meant) => format!("it is no NFS URL; write {meant}").into(),
                    None => "it does not begin with nfs://".into(),
                };
                return Err(Error::Url { url: url.to_owned(), reason });
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| bad("a [ without its ]"))?;
                match port {
                    "" => (host, None),
                    _ => (host, Some(port.strip_prefix(':').ok_or_else(|| bad("a bad port"))?)),
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() {
            return Err(bad("it names no host"));
        }
        let port = match port {
            Some(p) => {
                Some(p.parse().ok().filter(|&p| p != 0u16).ok_or_else(|| bad("a bad port"))?)
            }
            None => None,
        };
        let mut components = Vec::new();
        for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
            let name = percent_decode(part).ok_or_else(|| bad("a % without two hex digits"))?;
            if name == b".." || name.contains(&0) || name.contains(&b'/') {
                return Err(bad("a component that no file can have"));
            }
            components.push(name);
        }
        // As for path_resolution(7), `dir/.` is a directory, too.
        let is_nothing = |last: &str| matches!(last, "" | ".");
        let ends_in_slash =
            !components.is_empty() && path.rsplit('/').next().is_some_and(is_nothing);
        Ok(Self {
            host: host.to_owned(),
            port,
            path: components,
            ends_in_slash,
            query: query.to_owned(),
        })
    }
}

const SCHEME: &str = "nfs://";

/// The URL probably meant by `host:/path`, `nfs:/host/path` or a URL of another scheme.
fn suggestion(text: &str) -> Option<NfsUrl> {
    let (before, after) = text.split_once(":/")?;
    let (host, path) = match after.strip_prefix('/') {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None if before.eq_ignore_ascii_case("nfs") => after.split_once('/').unwrap_or((after, "")),
        None => (before, after),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split_once(':').filter(|_| !host.starts_with('[')).map_or(host, |(h, _)| h);
    let host = host.trim_matches(['[', ']']);
    if host.is_empty() || host.contains('/') {
        return None;
    }
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let path = parts.map(|part| part.as_bytes().to_vec()).collect();
    Some(NfsUrl {
        host: host.to_owned(),
        port: None,
        path,
        ends_in_slash: false,
        query: String::new(),
    })
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nfs://")?;
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if self.path.is_empty() {
            f.write_str("/")?;
        }
        for component in &self.path {
            f.write_str("/")?;
            for &byte in component {
                match byte {
                    b'%' | b'?' | b'#' | 0..=0x20 | 0x7f.. => write!(f, "%{byte:02X}")?,
                    _ => write!(f, "{}", char::from(byte))?,
                }
            }
        }
        if self.ends_in_slash && !self.path.is_empty() {
            f.write_str("/")?;
        }
        match self.query.as_str() {
            "" => Ok(()),
            query => write!(f, "?{query}"),
        }
    }
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            _ => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for text in [
            "nfs://host/",
            "nfs://host:2049/a/b%20c?vers=4.2&noreadplus",
            "nfs://[::1]:3049/x",
            "nfs://192.0.2.1/%FF",
            "nfs://host/link/",
            "nfs://host/link/?vers=3",
        ] {
            let url: NfsUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
        let url: NfsUrl = "nfs://h:99/a//b?port=7".parse().unwrap();
        assert_eq!(url.path, [b"a".to_vec(), b"b".to_vec()]);
        assert!(!url.ends_in_slash);
        let dot: NfsUrl = "nfs://h/a/b/.".parse().unwrap();
        assert!(dot.ends_in_slash && !dot.split_last().unwrap().0.ends_in_slash);
        assert_eq!(url.options(&MountOptions::default()).unwrap().port, Some(7));
    }

    #[test]
    fn errors_in_urls_suggest_a_correction() {
        for (text, meant) in [
            ("nfs:/h/x y", "nfs://h/x%20y"),
            ("h:/srv", "nfs://h/srv"),
            ("me@h:/srv/", "nfs://h/srv"),
            ("[fe80::1]:/a", "nfs://[fe80::1]/a"),
            ("http://h:80/a/b", "nfs://h/a/b"),
            ("nfs4://h", "nfs://h/"),
        ] {
            let error = text.parse::<NfsUrl>().unwrap_err().to_string();
            assert_eq!(error, format!("cannot read {text}: it is no NFS URL; write {meant}"));
        }
        assert_eq!("NFS://h/x".parse::<NfsUrl>().unwrap().to_string(), "nfs://h/x");
    }

    #[test]
    fn invalid_urls_are_refused() {
        for bad in [
            "http://h/",
            "nfs:///x",
            "nfs://h:0/",
            "nfs://h:x/",
            "nfs://h/../x",
            "nfs://h/%4",
            "nfs://[::1/x",
        ] {
            assert!(bad.parse::<NfsUrl>().is_err(), "{bad}");
        }
    }
}
