//! Lists of CPUs, as users and the kernel write them: `0-3,8`.
//!
//! A negative number counts from the end of the machine's CPUs: `-1` is the last, `-4--1` are the last four. Which ones those are is known only on the machine, so a list
//! is [parsed](CpuList::parse) first and [resolved](CpuList::resolve) there. A range with a negative end takes what is online in between; who names CPUs by their
//! own numbers is told if one is missing.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

/// The highest CPU number that is understood. Linux has at most 8192 CPUs; this bounds what a slip of the finger can make us count.
const CPU_MAX: i32 = 65_535;

/// CPUs that a user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList {
    /// What users call it, if it has a name.
    name: String,
    text: String,
    /// First and last of each part; below zero where counted from the end.
    parts: Vec<(i32, i32)>,
}

impl CpuList {
    /// Reads a list.
    ///
    /// # Errors
    /// `InvalidInput`, with the part that is wrong, why, and what is allowed.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let parse = |part: &str| {
            parse_part(part.trim()).map_err(|why| {
                refusal(
                    text,
                    format_args!(
                        "in {part:?}, {why}; allowed are numbers and ranges with commas between them, as in 0-3,8, from 0 to {CPU_MAX}, or from the end of the machine's CPUs: -1 is the last, -4--1 are the last four"
                    ),
                )
            })
        };
        Ok(Self { name: String::new(), text: text.to_owned(), parts: text.split(',').map(parse).collect::<io::Result<_>>()? })
    }

    /// The same list with a name, which errors about it begin with.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: format!("{name} is refused: "), ..self }
    }

    /// The CPUs it names on a machine with these `online`: in order, each once.
    ///
    /// # Errors
    /// `InvalidInput` if one of them does not exist or is offline.
    pub(crate) fn resolve(&self, online: &[usize]) -> io::Result<Vec<usize>> {
        let mut cpus = Vec::new();
        for &(first, last) in &self.parts {
            let range = self.place(first, online)?..=self.place(last, online)?;
            if first >= 0 && last >= 0 {
                if let Some(missing) = range.clone().find(|id| !online.contains(id)) {
                    return Err(self.refuse(format_args!("CPU {missing} does not exist or is offline; online are {}", Show(online))));
                }
            } else if range.is_empty() {
                return Err(self.refuse(format_args!(
                    "{first}-{last} is {}-{} here: it ends before it begins",
                    range.start(),
                    range.end()
                )));
            }
            cpus.extend(online.iter().filter(|&id| range.contains(id)));
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(cpus)
    }

    fn place(&self, number: i32, online: &[usize]) -> io::Result<usize> {
        match usize::try_from(number) {
            Ok(id) => Ok(id),
            Err(_) => online.len().checked_sub(number.unsigned_abs() as usize).map(|at| online[at]).ok_or_else(|| {
                self.refuse(format_args!(
                    "{number} counts from the end of the CPUs online, and there are {}: {}",
                    online.len(),
                    Show(online)
                ))
            }),
        }
    }

    /// An error about this list.
    pub(crate) fn refuse(&self, why: fmt::Arguments<'_>) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{}{}", self.name, refusal(&self.text, why)))
    }
}

fn refusal(text: &str, why: fmt::Arguments<'_>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the CPU list {text:?}: {why}"))
}

/// A list of the kernel's: plain numbers and ranges, or nothing.
pub(crate) fn parse_kernel(text: &str) -> Option<Vec<usize>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let range = |(first, last)| -> Option<RangeInclusive<usize>> { Some(usize::try_from(first).ok()?..=usize::try_from(last).ok()?) };
    let ranges: Option<Vec<_>> = text.split(',').map(|part| range(parse_part(part.trim()).ok()?)).collect();
    Some(ranges?.into_iter().flatten().collect())
}

fn parse_part(part: &str) -> Result<(i32, i32), &'static str> {
    // A dash in front is a sign; the next one makes a range.
    let dash = part.char_indices().skip(1).find(|&(_, letter)| letter == '-');
    let (first, last) = dash.map_or((part, part), |(at, _)| (&part[..at], &part[at + 1..]));
    let (first, last) = (parse_number(first.trim())?, parse_number(last.trim())?);
    if first > last && (first < 0) == (last < 0) {
        return Err("the range ends before it begins");
    }
    Ok((first, last))
}

fn parse_number(text: &str) -> Result<i32, &'static str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() {
        return Err("a number is missing");
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("there is something that is not a number");
    }
    let number = digits.parse::<i32>().ok().filter(|&number| number <= CPU_MAX).ok_or("a number is too large")?;
    match (digits.len() < text.len(), number) {
        (true, 0) => Err("-0 is no CPU"),
        (true, number) => Ok(-number),
        (false, number) => Ok(number),
    }
}

/// Writes CPUs, which are in order, as a list.
pub(crate) struct Show<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|before, after| before + 1 == *after);
        for (index, run) in runs.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                _ => write!(f, "{comma}{}-{}", run[0], run[run.len() - 1])?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(text: &str, online: &str) -> Result<String, String> {
        let online = parse_kernel(online).expect("a list");
        let cpus = CpuList::parse(text).and_then(|list| list.resolve(&online));
        cpus.map(|cpus| Show(&cpus).to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_name_cpus_from_the_start_and_from_the_end() {
        for (text, online, expected) in [
            ("0-3,8", "0-15", "0-3,8"),
            (" 8 , 0 - 3,2,8 ", "0-15", "0-3,8"),
            ("-1", "0-15", "15"),
            ("-4--1", "0-15", "12-15"),
            (" -4 - -1 ", "0-15", "12-15"),
            ("2--2", "0-7", "2-6"),
            ("-3-6", "0-7", "5-6"),
            ("0,-1", "0", "0"),
            // CPUs 4 and 6 are offline: the last four are the last four that are there.
            ("-4--1", "0-3,5,7", "2-3,5,7"),
            ("3--1", "0-3,5,7", "3,5,7"),
            ("65535", "65535", "65535"),
        ] {
            assert_eq!(resolve(text, online).as_deref(), Ok(expected), "{text:?} of {online}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_by_part_and_reason() {
        for (text, part, why) in [
            ("", "\"\"", "a number is missing"),
            ("0,,1", "\"\"", "a number is missing"),
            ("0-", "\"0-\"", "a number is missing"),
            ("-", "\"-\"", "a number is missing"),
            ("--1", "\"--1\"", "a number is missing"),
            ("0,x", "\"x\"", "not a number"),
            ("0,é-1", "\"é-1\"", "not a number"),
            ("1 2", "\"1 2\"", "not a number"),
            ("+1", "\"+1\"", "not a number"),
            ("1-2-3", "\"1-2-3\"", "not a number"),
            ("3-1", "\"3-1\"", "ends before it begins"),
            ("-1--4", "\"-1--4\"", "ends before it begins"),
            ("-0", "\"-0\"", "-0 is no CPU"),
            ("0-65536", "\"0-65536\"", "too large"),
            ("99999999999999999999", "\"99999999999999999999\"", "too large"),
        ] {
            let error = resolve(text, "0-7").expect_err(text);
            assert!(error.contains(&format!("in {part}, ")) && error.contains(why) && error.contains("as in 0-3,8"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        for (text, online, named) in [
            ("0-3", "0-1,3", "CPU 2 does not exist or is offline; online are 0-1,3"),
            ("9", "0-7", "CPU 9 does not"),
            ("-9", "0-7", "-9 counts from the end of the CPUs online, and there are 8: 0-7"),
            ("-9--1", "0-7", "-9 counts"),
            ("7--4", "0-7", "7--4 is 7-4 here: it ends before it begins"),
        ] {
            let error = resolve(text, online).expect_err(text);
            assert!(error.contains(named) && error.contains(&format!("{text:?}")), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_kernels_lists_have_plain_numbers_or_nothing() {
        assert_eq!(parse_kernel("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_kernel("\n"), Some(vec![]));
        for broken in ["-1", "0--1", "0-", "a", "0,,1"] {
            assert_eq!(parse_kernel(broken), None, "{broken:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(cpus in proptest::collection::btree_set(0usize..200, 0..40)) {
            let cpus: Vec<usize> = cpus.into_iter().collect();
            prop_assert_eq!(parse_kernel(&Show(&cpus).to_string()), Some(cpus));
        }

        #[test]
        fn no_text_is_taken_amiss(text in "[-0-9, x]{0,12}") {
            if let Ok(cpus) = CpuList::parse(&text).and_then(|list| list.resolve(&[0, 1, 2, 5])) {
                prop_assert!(!cpus.is_empty() && cpus.is_sorted() && cpus.iter().all(|id| [0, 1, 2, 5].contains(id)));
            }
        }
    }
}
