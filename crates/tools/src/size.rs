//! Sizes as users write them: `4096`, `512M`, `2GiB`, `1.5G`, `10MB`, and `50%` of memory. Every
//! number of bytes up to 2^64 - 1 is accepted exactly.

use std::fmt;
use std::str::FromStr;

/// A size in bytes, or a share of a size known later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of the whole.
    Percent(f64),
}

impl Size {
    /// The size in bytes; `whole` is what a percentage refers to.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASize;

impl fmt::Display for NotASize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a size; write it like 4096, 512M, 2GiB, 1.5G or 50%")
    }
}

impl std::error::Error for NotASize {}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let text = text.trim();
        let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        if unit == "%" {
            let number: f64 = number.parse().map_err(|_| NotASize)?;
            let sound = number > 0.0 && number <= 100.0;
            return if sound { Ok(Self::Percent(number)) } else { Err(NotASize) };
        }
        let bytes = times(number, unit_bytes(&unit)?).ok_or(NotASize)?;
        Ok(Self::Bytes(u64::try_from(bytes).map_err(|_| NotASize)?))
    }
}

/// A decimal number times `unit`, rounded to an integer; `None` if it is not a number.
fn times(number: &str, unit: u64) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    // Longer parts make no difference, or are mistakes.
    if part.len() > 18 || number.len() <= usize::from(number.contains('.')) {
        return None;
    }
    let digits = format!("{whole}{part}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let scale = 10_u128.pow(part.len() as u32);
    let scaled = digits.parse::<u128>().ok()?.checked_mul(unit.into())?;
    Some(scaled.checked_add(scale / 2)? / scale)
}

/// `k`, `m` and so on are powers of 1024, as are `kib`; `kb` are powers of 1000.
fn unit_bytes(unit: &str) -> Result<u64, NotASize> {
    if matches!(unit, "" | "b") {
        return Ok(1);
    }
    let (letter, rest) = unit.split_at_checked(1).ok_or(NotASize)?;
    let power = 1 + "kmgtpe".find(letter).ok_or(NotASize)? as u32;
    match rest {
        "" | "ib" => Ok(1024_u64.pow(power)),
        "b" => Ok(1000_u64.pow(power)),
        _ => Err(NotASize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("2GiB", 2 << 30),
            ("1.5G", 3 << 29),
            ("64k", 64 << 10),
            ("10MB", 10_000_000),
            (" 1 TiB ", 1 << 40),
            ("7b", 7),
            ("9007199254740993", (1 << 53) + 1),
            ("18446744073709551615", u64::MAX),
            ("15.9999999999999999E", u64::MAX - 114),
            (".5k", 512),
            ("1.", 1),
            ("0.3k", 307),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("50%".parse::<Size>().unwrap().of(1 << 30), 1 << 29);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in [
            "",
            "M",
            ".",
            ".G",
            "-1",
            "+1",
            "1.2.3G",
            "18446744073709551616",
            "16E",
            "5X",
            "5Mi",
            "0%",
            "101%",
            "99E9",
            "1e99",
            "é",
        ] {
            assert_eq!(text.parse::<Size>(), Err(NotASize), "{text}");
        }
    }
}
