//! Parses an address to listen on: `0.0.0.0:2049`, `[::1]:2049`, `192.0.2.1` or `2049`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// An address, a port, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: Option<u16>,
}

impl Bind {
    /// The address; loopback if none was given.
    pub(crate) fn ip(self) -> IpAddr {
        self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Both, if a port was given.
    pub(crate) fn with_port(self) -> Option<SocketAddr> {
        self.port.map(|port| SocketAddr::new(self.ip(), port))
    }
}

impl FromStr for Bind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(both) = text.parse::<SocketAddr>() {
            return Ok(Self { address: Some(both.ip()), port: Some(both.port()) });
        }
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse() {
            return Ok(Self { address: Some(address), port: None });
        }
        match text.strip_prefix(':').unwrap_or(text).parse() {
            Ok(port) => Ok(Self { address: None, port: Some(port) }),
            Err(_) => Err("write it like 0.0.0.0:2049, [::1]:2049, 192.0.2.1 or 2049"),
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip(), port).fmt(f),
            None => self.ip().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_addresses_are_parsed() {
        let bind = |text: &str| text.parse::<Bind>().map(|b| (b.address, b.port));
        let ip = |text: &str| text.parse().ok();
        assert_eq!(bind("0.0.0.0:99"), Ok((ip("0.0.0.0"), Some(99))));
        assert_eq!(bind("[::1]:99"), Ok((ip("::1"), Some(99))));
        assert_eq!(bind("::"), Ok((ip("::"), None)));
        assert_eq!(bind("[::1]"), Ok((ip("::1"), None)));
        assert_eq!(bind("2050"), Ok((None, Some(2050))));
        assert_eq!(bind(":0"), Ok((None, Some(0))));
        assert!(bind("here").is_err() && bind("1.2.3.4:99999").is_err());
    }
}
