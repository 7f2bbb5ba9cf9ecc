//! Points in time as users write them (touch(1) `-d`).

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date(pub(crate) SystemTime);

/// Why a text is no point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotADate;

impl fmt::Display for NotADate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a date; write it like 2026-11-21, 2026-11-21 14:30, 2026-11-21T14:30:00Z, \
             @1790000000, now, yesterday, or 2 hours ago",
        )
    }
}

impl std::error::Error for NotADate {}

impl FromStr for Date {
    type Err = NotADate;

    fn from_str(text: &str) -> Result<Self, NotADate> {
        let text = text.trim();
        parse(text, &Zoned::now()).map(|time| Self(time.into())).ok_or(NotADate)
    }
}

fn parse(text: &str, now: &Zoned) -> Option<Timestamp> {
    let later = |span: Span| Some(now.checked_add(span).ok()?.timestamp());
    match text {
        "now" | "today" => return Some(now.timestamp()),
        "yesterday" => return later(-1.days()),
        "tomorrow" => return later(1.days()),
        _ => {}
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
        let is_number = part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit());
        let nanos: i32 = format!("{part:0<9}").parse().ok().filter(|_| is_number)?;
        let nanos = if whole.starts_with('-') { -nanos } else { nanos };
        return Timestamp::new(whole.parse().ok()?, nanos).ok();
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    if let Ok(local) = text.parse::<DateTime>() {
        return local.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp());
    }
    text.parse::<Span>().ok().and_then(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_touch_takes_them() {
        let now: Zoned = "2026-11-22T12:00:00[UTC]".parse().unwrap();
        for (text, seconds) in [
            ("@1790000000", 1_790_000_000),
            ("@-1", -1),
            ("2026-11-21T14:30:00Z", 1_795_271_400),
            ("2026-11-21 14:30:00+02:00", 1_795_264_200),
            ("now", 1_795_348_800),
            ("yesterday", 1_795_262_400),
            ("2 hours ago", 1_795_341_600),
            ("3 days", 1_795_608_000),
        ] {
            let found = parse(text, &now).map(|time| time.as_second());
            assert_eq!(found, Some(seconds), "{text}");
        }
        assert_eq!(parse("@1.5", &now).unwrap().as_nanosecond(), 1_500_000_000);
        for text in ["2026-11-21", "2026-11-21 14:30", "2026-11-21T14:30:00.25"] {
            assert!(parse(text, &now).is_some(), "{text}");
        }
        for text in ["", "soon", "@", "@x", "@1.x", "2026-13-01", "14:30"] {
            assert!(text.parse::<Date>().is_err(), "{text}");
        }
    }
}
