//! Networks of clients, written `192.0.2.0/24`, `2001:db8::/32`, `192.0.2.7` or `*`.

use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// Every address, of either family.
    All,
    /// A network without host bits.
    Of(IpNet),
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not an address with a prefix.
    #[error("not a network; write it like 192.0.2.0/24, 2001:db8::/32, 192.0.2.7, or * for all")]
    Malformed,
    /// The prefix is longer than the address.
    #[error("the prefix is longer than the address; it has {0} bits")]
    Prefix(u8),
    /// The address has host bits.
    #[error("the address has bits beyond its prefix; did you mean {0}?")]
    HostBits(Network),
}

impl Network {
    /// Whether the network contains an address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::Of(network) => network.contains(&address.to_canonical()),
        }
    }

    /// How narrow the network is: larger for longer prefixes.
    pub fn narrowness(self) -> u8 {
        match self {
            Self::All => 0,
            Self::Of(network) => network.prefix_len() + 1,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        if text == "*" {
            return Ok(Self::All);
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Malformed)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| NetworkError::Malformed)?,
            None => bits,
        };
        let network = IpNet::new(address, prefix).map_err(|_| NetworkError::Prefix(bits))?;
        let whole = Self::Of(network.trunc());
        if network == network.trunc() { Ok(whole) } else { Err(NetworkError::HostBits(whole)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Of(host) if host.prefix_len() == host.max_prefix_len() => {
                write!(f, "{}", host.addr())
            }
            Self::Of(network) => write!(f, "{network}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_belong_to_networks() {
        let contains = |n: &str, a: &str| network(n).contains(a.parse().unwrap());
        assert!(contains("192.0.2.0/24", "192.0.2.255"));
        assert!(!contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("192.0.2.0/24", "::ffff:192.0.2.1"));
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(contains("0.0.0.0/0", "203.0.113.1") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("2001:db8::/32", "2001:db8:1::9"));
        assert!(!contains("2001:db8::/32", "2001:db9::"));
        assert!(contains("::/0", "2001:db8::") && !contains("::/0", "192.0.2.1"));
        assert!(contains("*", "::1") && contains("*", "127.0.0.1"));
    }

    #[test]
    fn invalid_networks_are_refused_with_advice() {
        for text in ["", "here", "1.2.3.4/", "1.2.3.4/x", "1.2.3/8", "1.2.3.4/999", "/8"] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError::Malformed), "{text}");
        }
        assert_eq!("1.2.3.4/33".parse::<Network>(), Err(NetworkError::Prefix(32)));
        let error = "192.0.2.9/24".parse::<Network>().unwrap_err();
        assert!(error.to_string().ends_with("did you mean 192.0.2.0/24?"), "{error}");
    }

    #[test]
    fn networks_round_trip_through_text() {
        for text in ["*", "192.0.2.0/24", "192.0.2.7", "2001:db8::/32", "::1", "0.0.0.0/0"] {
            assert_eq!(network(text).to_string(), text);
        }
    }
}
