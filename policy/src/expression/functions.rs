//! The functions of expressions: those of Kubernetes' CEL whose cost is bounded by the length of the expression and of
//! what it reads.
//!
//! The results are not longer than the inputs. So `replace`, `join` and `format` are missing: a chain of them grows
//! exponentially.

use cel::common::types::{CelBool, CelInt, CelList, CelString, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload};
use regex::Regex;

use super::types::{Scalar, Type};
use super::{quantity_value, semver_value};

/// Functions called on a value, for suggestions.
pub(super) const METHODS: [&str; 29] = [
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "size",
    "find",
    "findAll",
    "lowerAscii",
    "upperAscii",
    "trim",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "substring",
    "split",
    "isSorted",
    "sum",
    "min",
    "max",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "isInteger",
    "asInteger",
    "add",
    "sub",
    "major",
    "minor",
    "patch",
];

/// Functions called by themselves, for suggestions.
pub(super) const FUNCTIONS: [&str; 8] =
    ["quantity", "isQuantity", "sign", "semver", "isSemver", "size", "int", "string"];

/// How to call a function.
pub(super) fn usage(name: &str) -> String {
    let example = match name {
        "isSorted" | "sum" | "min" | "max" => format!("[3, 2].{name}()"),
        "size" | "lowerAscii" | "upperAscii" | "trim" => format!("text.{name}()"),
        "charAt" | "substring" => format!("text.{name}(0)"),
        "isGreaterThan" | "isLessThan" | "compareTo" | "add" | "sub" => format!("a.{name}(quantity(\"40Gi\"))"),
        "sign" => "sign(quantity(\"40Gi\"))".to_owned(),
        "isInteger" | "asInteger" => format!("quantity(\"40Gi\").{name}()"),
        "major" | "minor" | "patch" => format!("semver(\"1.2.3\").{name}()"),
        "quantity" | "isQuantity" => format!("{name}(\"40Gi\")"),
        "semver" | "isSemver" => format!("{name}(\"1.2.3\")"),
        "int" => "int(\"8\")".to_owned(),
        "string" => "string(8)".to_owned(),
        _ => format!("text.{name}(\"..\")"),
    };
    format!("write for example `{example}`")
}

/// The type of a call; `None` if there is no such function for these types.
pub(super) fn result_type(target: Option<Type>, name: &str, arguments: &[Type]) -> Option<Type> {
    const TEXTS: Type = Type::ListOf(Scalar::Text);
    Some(match (target, name, arguments) {
        (Some(Type::Text), "startsWith" | "endsWith" | "contains" | "matches", [Type::Text]) => Type::Bool,
        (Some(Type::Text | Type::ListOf(_)), "size", []) | (None, "size", [Type::Text | Type::ListOf(_)]) => Type::Int,
        (Some(Type::Text), "find", [Type::Text])
        | (Some(Type::Text), "lowerAscii" | "upperAscii" | "trim", [])
        | (Some(Type::Text), "charAt" | "substring", [Type::Int])
        | (Some(Type::Text), "substring", [Type::Int, Type::Int])
        | (None, "string", [Type::Int | Type::Bool | Type::Text]) => Type::Text,
        (Some(Type::Text), "findAll" | "split", [Type::Text] | [Type::Text, Type::Int]) => TEXTS,
        (Some(Type::Text), "indexOf" | "lastIndexOf", [Type::Text] | [Type::Text, Type::Int])
        | (None, "int", [Type::Text | Type::Int]) => Type::Int,
        (Some(Type::ListOf(_)), "isSorted", []) => Type::Bool,
        (Some(Type::ListOf(Scalar::Int)), "sum", []) => Type::Int,
        (Some(Type::ListOf(item)), "min" | "max", []) => item.as_type(),
        (Some(Type::ListOf(item)), "indexOf" | "lastIndexOf", [element]) if element.scalar() == Some(item) => Type::Int,
        (None, "quantity", [Type::Text]) => Type::Quantity,
        (None, "semver", [Type::Text] | [Type::Text, Type::Bool]) => Type::Semver,
        (None, "isQuantity", [Type::Text]) | (None, "isSemver", [Type::Text] | [Type::Text, Type::Bool]) => Type::Bool,
        (Some(Type::Quantity), "isGreaterThan" | "isLessThan", [Type::Quantity])
        | (Some(Type::Semver), "isGreaterThan" | "isLessThan", [Type::Semver])
        | (Some(Type::Quantity), "isInteger", []) => Type::Bool,
        (Some(Type::Quantity), "compareTo", [Type::Quantity])
        | (Some(Type::Semver), "compareTo", [Type::Semver])
        | (None, "sign", [Type::Quantity])
        | (Some(Type::Quantity), "asInteger", [])
        | (Some(Type::Semver), "major" | "minor" | "patch", []) => Type::Int,
        (Some(Type::Quantity), "add" | "sub", [Type::Quantity | Type::Int]) => Type::Quantity,
        _ => return None,
    })
}

/// The standard functions of CEL and the extensions of Kubernetes. The check of types keeps out those without a bound.
pub(super) fn environment() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings)?;
    quantity_value::declare(&mut env)?;
    semver_value::declare(&mut env)?;
    add_member_overload!(env, fn find: (CelString, CelString) -> Result<CelString>)?;
    add_member_overload!(env, fn find_all: (CelString, CelString) -> Result<CelList>)?;
    add_member_overload!(env, fn find_some: (CelString, CelString, CelInt) -> Result<CelList>, name = "findAll")?;
    env.add_member_overload("isSorted", "list.isSorted()", LIST_TYPE, vec![], is_sorted)?;
    env.add_member_overload("sum", "list.sum()", LIST_TYPE, vec![], sum)?;
    env.add_member_overload("min", "list.min()", LIST_TYPE, vec![], |args| extreme(args, "min"))?;
    env.add_member_overload("max", "list.max()", LIST_TYPE, vec![], |args| extreme(args, "max"))?;
    let any = || vec![cel::common::types::DYN_TYPE];
    env.add_member_overload("indexOf", "list.indexOf(dyn)", LIST_TYPE, any(), |args| position(args, false))?;
    env.add_member_overload("lastIndexOf", "list.lastIndexOf(dyn)", LIST_TYPE, any(), |args| position(args, true))?;
    Ok(env)
}

fn pattern(text: &str) -> Result<Regex, ExecutionError> {
    Regex::new(text).map_err(|_| ExecutionError::function_error("find", "not a regular expression"))
}

fn find(this: &CelString<'_>, expression: &CelString<'_>) -> Result<CelString<'static>, ExecutionError> {
    let found = pattern(expression)?.find(this).map_or("", |found| found.as_str()).to_owned();
    Ok(found.into())
}

fn find_all(this: &CelString<'_>, expression: &CelString<'_>) -> Result<CelList<'static>, ExecutionError> {
    find_some(this, expression, &CelInt::from(-1))
}

/// The first matches; all of them if `most` is negative.
fn find_some(
    this: &CelString<'_>,
    expression: &CelString<'_>,
    most: &CelInt,
) -> Result<CelList<'static>, ExecutionError> {
    let most = usize::try_from(*most.inner()).unwrap_or(usize::MAX);
    let texts = pattern(expression)?;
    let found = texts.find_iter(this).take(most).map(|found| CelString::from(found.as_str().to_owned()));
    Ok(found.map(|text| Box::new(text) as Box<dyn Val>).collect::<Vec<_>>().into())
}

/// The list of a call of a function of lists.
fn list<'a, 'v>(args: &'a [CowVal<'_, 'v>]) -> Result<&'a CelList<'v>, ExecutionError> {
    let no_list = || ExecutionError::function_error("list", "not a list");
    args.first().and_then(|list| list.as_ref().downcast_ref::<CelList<'_>>()).ok_or_else(no_list)
}

fn compare(left: &dyn Val, right: &dyn Val) -> Result<std::cmp::Ordering, ExecutionError> {
    let not_ordered = || ExecutionError::function_error("list", "the items have no order");
    left.as_comparer().ok_or_else(not_ordered)?.compare(right)
}

fn is_sorted<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    for pair in list(&args)?.inner().windows(2) {
        if let [left, right] = pair
            && compare(left.as_ref(), right.as_ref())?.is_gt()
        {
            return Ok(CowVal::owned(CelBool::FALSE));
        }
    }
    Ok(CowVal::owned(CelBool::TRUE))
}

fn sum<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let items = list(&args)?.inner().iter();
    let numbers = items.map(|item| item.downcast_ref::<CelInt>().map(|number| *number.inner()));
    let sum = numbers.into_iter().try_fold(0_i64, |sum, number| sum.checked_add(number?));
    let too_large = || ExecutionError::function_error("sum", "the sum is too large");
    sum.map(|sum| CowVal::owned(CelInt::from(sum))).ok_or_else(too_large)
}

fn extreme<'b, 'v>(args: Vec<CowVal<'b, 'v>>, function: &str) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut items = list(&args)?.inner().iter();
    let mut found = items.next().ok_or_else(|| ExecutionError::function_error(function, "the list is empty"))?;
    for item in items {
        let order = compare(item.as_ref(), found.as_ref())?;
        if if function == "max" { order.is_gt() } else { order.is_lt() } {
            found = item;
        }
    }
    Ok(CowVal::Owned(found.clone_as_boxed()))
}

/// Index of the first or last item that equals the argument; -1 if none does.
fn position<'b, 'v>(args: Vec<CowVal<'b, 'v>>, from_end: bool) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let items = list(&args)?.inner();
    let missing = || ExecutionError::invalid_argument_count(1, 0);
    let wanted = args.get(1).ok_or_else(missing)?.as_ref();
    let mut equal = items.iter().map(|item| item.equals(wanted));
    let found = if from_end { equal.rposition(|equal| equal) } else { equal.position(|equal| equal) };
    Ok(CowVal::owned(CelInt::from(found.and_then(|index| i64::try_from(index).ok()).unwrap_or(-1))))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::device::DeviceFacts;
    use crate::expression::parse_selector;

    /// Each holds; `integration-tests/testkit` asks a real API server the same.
    const HOLD: &str = include_str!("../../tests/kubernetes-cel.txt");

    #[test]
    fn functions_answer_as_in_kubernetes() {
        let device = DeviceFacts::default();
        for line in HOLD.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let selector = parse_selector(line).unwrap_or_else(|errors| panic!("{line}: {errors:?}"));
            assert!(selector.matches(&device), "{line}");
        }
    }

    #[test]
    fn every_known_function_has_a_use_that_compiles() {
        for name in super::METHODS {
            assert!(HOLD.contains(&format!(".{name}(")), "{name}");
        }
        for name in super::FUNCTIONS {
            assert!(HOLD.contains(&format!("{name}(")), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_computed_matches_nothing() {
        for source in [
            "sign(quantity(device.brand)) == 0",
            "semver(device.brand, true).major() == 0",
            "sign(quantity('9e28').add(quantity('9e28')).add(quantity('9e28'))) == 1",
            "quantity('1.5').asInteger() == 1",
            "quantity('1e19').asInteger() == 1",
            "[9223372036854775807, 1].sum() > 0",
            "int(device.brand) == 0",
            "'abc'.charAt(4) == ''",
            "'abc'.substring(2, 1) == ''",
            "semver('18446744073709551615.0.0').major() > 0",
        ] {
            assert!(!parse_selector(source).unwrap().matches(&DeviceFacts::default()), "{source}");
        }
    }
}
