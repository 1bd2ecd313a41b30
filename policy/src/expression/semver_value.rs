//! Semantic versions in expressions. They are ordered as semver.org says; build metadata does not count.

use std::any::Any;
use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use semver::Version;

static SEMVER_TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A semantic version, such as `570.86.15`.
#[derive(Clone, Debug)]
pub(crate) struct SemverValue(Version);

impl SemverValue {
    /// Reads three numbers, with a pre-release and build metadata if the text has them.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Version::parse(text).ok().map(Self)
    }

    /// Like [`parse`](Self::parse), but also accepts a `v` before, leading zeros and fewer than three numbers.
    pub(crate) fn parse_lenient(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
        let is_short_with_suffix = parts.len() < 3 && text.contains(['-', '+']);
        if is_short_with_suffix {
            return None;
        }
        let missing = std::iter::repeat_n("0".to_owned(), 3 - parts.len());
        let full: Vec<String> = parts.into_iter().chain(missing).collect();
        Self::parse(&full.join("."))
    }

    fn order(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}

/// Drops zeros before a number, but not its last digit.
fn without_leading_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    let lost_its_number = rest.len() < part.len() && !rest.starts_with(|c: char| c.is_ascii_digit());
    if lost_its_number { format!("0{rest}") } else { rest.to_owned() }
}

impl Val for SemverValue {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &SEMVER_TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.order(other).is_eq())
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for SemverValue {}

/// Adds the functions of versions.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn semver_of: (CelString) -> Result<SemverValue>, name = "semver")?;
    add_overload!(env, fn semver_leniently: (CelString, CelBool) -> Result<SemverValue>, name = "semver")?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool)?;
    add_overload!(env, fn is_semver_leniently: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn is_greater_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (SemverValue, SemverValue) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (SemverValue, SemverValue) -> CelInt)?;
    add_member_overload!(env, fn major: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn minor: (SemverValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn patch: (SemverValue) -> Result<CelInt>)
}

fn read(text: &CelString<'_>, leniently: bool) -> Option<SemverValue> {
    if leniently { SemverValue::parse_lenient(text) } else { SemverValue::parse(text) }
}

fn semver_of(text: &CelString<'_>) -> Result<SemverValue, ExecutionError> {
    semver_leniently(text, &CelBool::FALSE)
}

fn semver_leniently(text: &CelString<'_>, leniently: &CelBool) -> Result<SemverValue, ExecutionError> {
    read(text, *leniently.inner()).ok_or_else(|| ExecutionError::function_error("semver", "not a version"))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    read(text, false).is_some().into()
}

fn is_semver_leniently(text: &CelString<'_>, leniently: &CelBool) -> CelBool {
    read(text, *leniently.inner()).is_some().into()
}

fn is_greater_than(this: &SemverValue, other: &SemverValue) -> CelBool {
    this.order(other).is_gt().into()
}

fn is_less_than(this: &SemverValue, other: &SemverValue) -> CelBool {
    this.order(other).is_lt().into()
}

fn compare_to(this: &SemverValue, other: &SemverValue) -> CelInt {
    i64::from(this.order(other) as i8).into()
}

fn major(this: &SemverValue) -> Result<CelInt, ExecutionError> {
    number(this.0.major)
}

fn minor(this: &SemverValue) -> Result<CelInt, ExecutionError> {
    number(this.0.minor)
}

fn patch(this: &SemverValue) -> Result<CelInt, ExecutionError> {
    number(this.0.patch)
}

fn number(value: u64) -> Result<CelInt, ExecutionError> {
    let too_large = |_| ExecutionError::function_error("semver", "a number of the version is too large");
    i64::try_from(value).map(CelInt::from).map_err(too_large)
}
