//! CEL selectors over one device.
//!
//! Only a subset of CEL compiles: known attributes, comparisons within one type, no loops, no floating point. So a
//! selector has the same answer on every replica, for every device, at a cost bounded by its length.

use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::parser::Parser;
use cel::{Context, Env, IdedExpr, Value};
use serde::{Serialize, Serializer};

use crate::device::{ATTRIBUTES, AttributeValue, DeviceFacts};
use crate::limits::{MAX_SELECTOR_BYTES, MAX_SELECTOR_DEPTH};
use crate::problem::{Place, Problem, ProblemCode, shorten};
use crate::reading::yaml::place_within;

use error::SelectorError;

mod error;
mod nesting;
mod type_check;

/// The standard functions of CEL. Building them costs more than thirty evaluations.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A valid CEL selector. Cheap to clone.
#[derive(Clone)]
pub struct Selector {
    source: Arc<str>,
    expression: Arc<IdedExpr>,
}

impl Selector {
    /// The text that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the selector matches a device. It does not if evaluation fails: an attribute is missing from `extra`, or
    /// arithmetic overflows.
    #[must_use]
    pub fn matches(&self, device: &DeviceFacts) -> bool {
        self.matches_in(&device_context(device))
    }

    /// Like [`matches`](Self::matches), in a context of [`device_context`].
    pub(crate) fn matches_in(&self, context: &Context<'_, '_>) -> bool {
        matches!(Value::resolve(&self.expression, context), Ok(Value::Bool(true)))
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selector").field(&self.source).finish()
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Selector {}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

/// Compiles the selector of a request.
///
/// # Errors
/// The first problem, in the file `selector`.
pub fn compile_selector(source: &str) -> Result<Selector, Problem> {
    parse_selector(source).map_err(|errors| {
        let error = errors
            .into_iter()
            .next()
            .unwrap_or_else(|| SelectorError::whole(ProblemCode::CelSyntax, "not a selector", ""));
        let start = Place { file: 0, line: 1, column: 1, width: 1 };
        let place = place_within(source, start, 0, source, error.at, error.width);
        Problem::in_text("selector", source, place, error.code, &error.message, &error.remedy)
    })
}

/// Parses and checks a selector. A failure has at least one error.
pub(crate) fn parse_selector(source: &str) -> Result<Selector, Vec<SelectorError>> {
    if source.len() > MAX_SELECTOR_BYTES {
        let message = format!("the selector has {} bytes; at most {MAX_SELECTOR_BYTES} are allowed", source.len());
        return Err(vec![SelectorError::whole(
            ProblemCode::CelTooCostly,
            message,
            "shorten it, or split it into several classes",
        )]);
    }
    if source.trim().is_empty() {
        return Err(vec![SelectorError::whole(
            ProblemCode::CelSyntax,
            "the selector is empty",
            "write for example `device.memoryMiB >= 40000`",
        )]);
    }
    nesting::check_nesting(source)?;
    let depth = u16::try_from(MAX_SELECTOR_DEPTH * 2).unwrap_or(u16::MAX);
    let (expression, places) =
        Parser::new().max_recursion_depth(depth).error_recovery_limit(4).parse_with_source_info(source).map_err(
            |errors| errors.errors.iter().take(4).map(|error| syntax_error(source, error)).collect::<Vec<_>>(),
        )?;
    type_check::check_types(source, &expression, &places)?;
    Ok(Selector { source: source.into(), expression: Arc::new(expression) })
}

fn syntax_error(source: &str, error: &cel::ParseError) -> SelectorError {
    // Line and column count from 1; some internal errors have none.
    let line = usize::try_from(error.pos.0).unwrap_or(1).max(1);
    let column = usize::try_from(error.pos.1).unwrap_or(1).max(1);
    let before: usize = source.split_inclusive('\n').take(line - 1).map(|line| line.chars().count()).sum();
    let message = error.msg.lines().next().unwrap_or_default();
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    // The parser lists every token that could follow; the first half of its sentence says enough.
    let message = message.split(" expecting ").next().unwrap_or(message);
    SelectorError {
        at: before + column - 1,
        width: 1,
        code: ProblemCode::CelSyntax,
        message: format!("the selector is not CEL: {}", shorten(message)),
        remedy: "a selector looks like `device.architecture == \"Hopper\" && device.memoryMiB >= 80000`".to_owned(),
    }
}

/// The variables of an evaluation: `device` with its attributes. Reuse it for several selectors.
pub(crate) fn device_context(device: &DeviceFacts) -> Context<'static, 'static> {
    #[expect(
        clippy::disallowed_types,
        reason = "the CEL crate's map type; looked up by key only, as comprehensions are refused"
    )]
    type CelMap<V> = std::collections::HashMap<String, V>;
    let mut attributes: CelMap<Value> = CelMap::with_capacity(ATTRIBUTES.len());
    for attribute in &ATTRIBUTES {
        let value = match (attribute.read)(device) {
            AttributeValue::Text(text) => text.into(),
            AttributeValue::Number(number) => Value::Int(number),
            AttributeValue::TextMap(map) => map.clone().into_iter().collect::<CelMap<String>>().into(),
        };
        attributes.insert(attribute.name.to_owned(), value);
    }
    let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
    context.add_variable_from_value("device", attributes);
    context
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn h100() -> DeviceFacts {
        DeviceFacts {
            product_name: "NVIDIA H100 80GB HBM3".into(),
            architecture: "Hopper".into(),
            memory_mib: 81_559,
            cuda_compute_capability: "9.0".into(),
            driver_version: "570.86.15".into(),
            brand: "Nvidia".into(),
            sharing: "exclusive".into(),
            isolation: "hardware".into(),
            extra: [("nvlink".to_owned(), "18".to_owned())].into(),
        }
    }

    #[test]
    fn selectors_answer_for_a_device() {
        for (source, expected) in [
            ("device.memoryMiB >= 40000", true),
            ("device.memoryMiB < 40000", false),
            ("device.architecture in ['Hopper', \"Blackwell\"]", true),
            ("device.productName.startsWith('NVIDIA H') && !device.productName.contains('PCIe')", true),
            ("device.productName.matches('H(100|200)')", true),
            ("device.cudaComputeMajor >= 8 && device.cudaComputeMinor == 0", true),
            ("device.driverMajor > 570 || device.sharing != 'mig'", true),
            ("device.isolation == 'hardware'", true),
            ("device.extra.nvlink == '18'", true),
            ("device.extra['nvlink'] == '18' && 'nvlink' in device.extra", true),
            ("has(device.extra.rdma) && device.extra.rdma == '400'", false),
            // Missing, and not asked for: selects nothing, in either sense.
            ("device.extra.rdma == '400'", false),
            ("device.extra.rdma != '400'", false),
            ("(device.memoryMiB / 1024) % 2 == 1 ? true : false", true),
            ("device.memoryMiB * 9223372036854775807 > 0", false),
            ("device.memoryMiB / 0 == 1", false),
        ] {
            let selector = parse_selector(source).unwrap();
            assert_eq!(selector.matches(&h100()), expected, "{source}");
        }
    }

    #[test]
    fn wrong_selectors_are_refused_with_a_place() {
        for (source, code, at) in [
            ("", ProblemCode::CelSyntax, 0),
            ("device.memoryMiB >=", ProblemCode::CelSyntax, 19),
            ("device.memory > 1", ProblemCode::CelUnknownName, 7),
            ("memoryMiB > 1", ProblemCode::CelUnknownName, 0),
            ("device.memoryMiB > '1'", ProblemCode::CelType, 17),
            ("device.memoryMiB", ProblemCode::CelType, 6),
            ("device.cudaComputeCapability >= '8.0'", ProblemCode::CelType, 29),
            ("true || device.memoryMiB == 'x'", ProblemCode::CelType, 25),
            ("device.memoryMiB > 1.5", ProblemCode::CelType, 19),
            ("device.memoryMiB > 1u", ProblemCode::CelType, 19),
            ("[1, 2].exists(x, x == device.memoryMiB)", ProblemCode::CelTooCostly, 14),
            ("device.productName.matches(device.brand)", ProblemCode::CelTooCostly, 26),
            ("device.productName.matches('a{1000}')", ProblemCode::CelTooCostly, 27),
            ("device.productName.matches('(')", ProblemCode::CelSyntax, 27),
            ("device.productName.lower() == 'x'", ProblemCode::CelUnknownName, 19),
            ("timestamp('2026-01-01T00:00:00Z') == 1", ProblemCode::CelUnknownName, 0),
        ] {
            let errors = parse_selector(source).unwrap_err();
            let places: Vec<(ProblemCode, usize)> = errors.iter().map(|error| (error.code, error.at)).collect();
            assert!(places.iter().any(|(found, _)| *found == code), "{source}: {errors:?}");
            assert!(
                places.iter().any(|(_, found)| found.abs_diff(at) <= 1),
                "{source}: expected {at}, found {errors:?}"
            );
        }
    }

    #[test]
    fn no_text_of_allowed_length_exhausts_the_stack() {
        for unit in [
            "(", "[", "!", "-", "1+", "a.", "a?", "a?b:", "1-", "{", "a[", "f(", "a&&", "a||", "1==", "1<", "'",
            "'\n(", "\"\"\"", "\\", "r'", "{1:", "a{b:",
        ] {
            let text = unit.repeat(MAX_SELECTOR_BYTES / unit.len());
            assert!(parse_selector(&text).is_err(), "{unit}");
            let closed = format!("{}1", unit.repeat(MAX_SELECTOR_BYTES / unit.len() - 2));
            assert!(parse_selector(&closed).is_err(), "{unit}1");
        }
    }

    #[test]
    fn a_long_flat_selector_is_fine() {
        let terms: Vec<String> = (0..20).map(|n| format!("device.memoryMiB != {n}")).collect();
        assert!(parse_selector(&terms.join(" && ")).unwrap().matches(&h100()));
        assert!(parse_selector(&terms.join(" || ")).unwrap().matches(&h100()));
    }

    #[test]
    fn selectors_cross_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<Selector>();
    }

    #[test]
    fn a_request_selector_reports_its_place() {
        let problem = compile_selector("device.memoryMib > 1").unwrap_err();
        assert_eq!((problem.line, problem.column, problem.code), (1, 8, ProblemCode::CelUnknownName));
        assert_eq!(problem.remedy, "did you mean `memoryMiB`?");
        assert!(compile_selector(&"x".repeat(MAX_SELECTOR_BYTES + 1)).is_err());
    }
}
