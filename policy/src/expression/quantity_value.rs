//! Kubernetes quantities in expressions: exact, in billionths.

use std::any::Any;

use cel::common::types::{CelBool, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};

use crate::amounts::quantity;

static QUANTITY_TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// Billionths per one.
const NANO_PER_ONE: i128 = 1_000_000_000;

/// A quantity, such as `40Gi` or `-0.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuantityValue {
    nano: i128,
}

impl QuantityValue {
    /// Reads what Kubernetes accepts, up to about 10²⁹.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (is_negative, amount) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        // `nano` accepts spaces around, and a sign of its own.
        if !amount.starts_with(|c: char| c.is_ascii_digit() || c == '.') || amount.contains(char::is_whitespace) {
            return None;
        }
        let nano = i128::try_from(quantity::nano(amount)?).ok()?;
        Some(Self { nano: if is_negative { -nano } else { nano } })
    }

    /// A whole number of anything, such as bytes.
    pub(crate) fn of_whole(number: u64) -> Self {
        Self { nano: i128::from(number) * NANO_PER_ONE }
    }

    /// Thousandths of anything, such as GPUs.
    pub(crate) fn of_milli(milli: u64) -> Self {
        Self { nano: i128::from(milli) * (NANO_PER_ONE / 1_000) }
    }

    fn of_int(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO_PER_ONE }
    }
}

impl Val for QuantityValue {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &QUANTITY_TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self == other)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for QuantityValue {}

/// Adds the functions of quantities, except `asApproximateFloat`: expressions have no fractions.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn quantity_of: (CelString) -> Result<QuantityValue>, name = "quantity")?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (QuantityValue, QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (QuantityValue, QuantityValue) -> CelInt)?;
    add_overload!(env, fn sign: (QuantityValue) -> CelInt)?;
    add_member_overload!(env, fn is_integer: (QuantityValue) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (QuantityValue) -> Result<CelInt>)?;
    add_member_overload!(env, fn add: (QuantityValue, QuantityValue) -> Result<QuantityValue>)?;
    add_member_overload!(env, fn add_int: (QuantityValue, CelInt) -> Result<QuantityValue>, name = "add")?;
    add_member_overload!(env, fn sub: (QuantityValue, QuantityValue) -> Result<QuantityValue>)?;
    add_member_overload!(env, fn sub_int: (QuantityValue, CelInt) -> Result<QuantityValue>, name = "sub")
}

fn quantity_of(text: &CelString<'_>) -> Result<QuantityValue, ExecutionError> {
    QuantityValue::parse(text).ok_or_else(|| ExecutionError::function_error("quantity", "not a quantity"))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    QuantityValue::parse(text).is_some().into()
}

fn is_greater_than(this: &QuantityValue, other: &QuantityValue) -> CelBool {
    (this.nano > other.nano).into()
}

fn is_less_than(this: &QuantityValue, other: &QuantityValue) -> CelBool {
    (this.nano < other.nano).into()
}

fn compare_to(this: &QuantityValue, other: &QuantityValue) -> CelInt {
    i64::from(this.nano.cmp(&other.nano) as i8).into()
}

fn sign(this: &QuantityValue) -> CelInt {
    i64::from(this.nano.cmp(&0) as i8).into()
}

fn is_integer(this: &QuantityValue) -> CelBool {
    integer(this).is_some().into()
}

fn as_integer(this: &QuantityValue) -> Result<CelInt, ExecutionError> {
    let not_whole = || ExecutionError::function_error("asInteger", "not a whole number of 64 bits");
    integer(this).map(CelInt::from).ok_or_else(not_whole)
}

fn integer(this: &QuantityValue) -> Option<i64> {
    (this.nano % NANO_PER_ONE == 0).then_some(this.nano / NANO_PER_ONE).and_then(|whole| i64::try_from(whole).ok())
}

fn add(this: &QuantityValue, other: &QuantityValue) -> Result<QuantityValue, ExecutionError> {
    checked("add", this.nano.checked_add(other.nano))
}

fn add_int(this: &QuantityValue, other: &CelInt) -> Result<QuantityValue, ExecutionError> {
    add(this, &QuantityValue::of_int(*other.inner()))
}

fn sub(this: &QuantityValue, other: &QuantityValue) -> Result<QuantityValue, ExecutionError> {
    checked("sub", this.nano.checked_sub(other.nano))
}

fn sub_int(this: &QuantityValue, other: &CelInt) -> Result<QuantityValue, ExecutionError> {
    sub(this, &QuantityValue::of_int(*other.inner()))
}

fn checked(function: &str, nano: Option<i128>) -> Result<QuantityValue, ExecutionError> {
    let too_large = || ExecutionError::function_error(function, "the result is too large");
    nano.map(|nano| QuantityValue { nano }).ok_or_else(too_large)
}
