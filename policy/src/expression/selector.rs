//! CEL selectors over one device.

use cel::Context;
use serde::Serialize;

use super::device_record::{DEVICE, device_value};
use super::types::{Field, Type, Vocabulary};
use super::{Expression, ExpressionError, context};
use crate::device::DeviceFacts;
use crate::problem::{Place, Problem, ProblemCode};
use crate::reading::yaml::place_within;

/// What selectors can use.
static SELECTOR_VOCABULARY: Vocabulary = Vocabulary {
    noun: "selector",
    variables: &[Field::new("device", Type::Record(&DEVICE))],
    example: "device.architecture == \"Hopper\" && device.memoryMiB >= 80000",
    shorten: "split it into several classes, or use `in [..]`",
};

/// A valid CEL selector. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Selector(Expression);

impl Selector {
    /// The text that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        self.0.source()
    }

    /// Whether the selector matches a device. It does not if evaluation fails: an attribute is missing, or arithmetic
    /// overflows.
    #[must_use]
    pub fn matches(&self, device: &DeviceFacts) -> bool {
        self.matches_in(&device_context(device))
    }

    /// Like [`matches`](Self::matches), in a context of [`device_context`].
    pub(crate) fn matches_in(&self, context: &Context<'_, '_>) -> bool {
        self.0.holds(context).unwrap_or(false)
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
            .unwrap_or_else(|| ExpressionError::whole(ProblemCode::CelSyntax, "not a selector", ""));
        let start = Place { file: 0, line: 1, column: 1, width: 1 };
        let place = place_within(source, start, 0, source, error.at, error.width);
        Problem::in_text("selector", source, place, error.code, &error.message, &error.remedy)
    })
}

/// Parses and checks a selector. A failure has at least one error.
pub(crate) fn parse_selector(source: &str) -> Result<Selector, Vec<ExpressionError>> {
    Expression::parse(source, &SELECTOR_VOCABULARY).map(|(expression, _)| Selector(expression))
}

/// The variables of an evaluation: `device`. Reuse it for several selectors.
pub(crate) fn device_context(device: &DeviceFacts) -> Context<'_, '_> {
    context([("device", device_value(device))])
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::limits::MAX_EXPRESSION_BYTES;

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
            // What users of DRA write.
            ("device.driver == 'gpu.nvidia.com'", true),
            ("device.attributes['gpu.nvidia.com'].architecture == 'Hopper'", true),
            ("device.attributes['gpu.nvidia.com']['productName'].lowerAscii().contains('h100')", true),
            ("device.attributes['gpu.nvidia.com'].type == 'gpu'", true),
            ("device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('570.0.0'))", true),
            ("device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('9.0.0')) >= 0", true),
            ("device.attributes['gpu.nvidia.com'].cudaComputeCapability == semver('9.0', true)", true),
            ("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('40Gi'))", true),
            ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0", false),
            ("device.capacity['gpu.nvidia.com'].memory == quantity('81559Mi')", true),
            ("'gpu.nvidia.com' in device.attributes && has(device.capacity['gpu.nvidia.com'].memory)", true),
            ("semver(device.driverVersion, true).major() == device.driverMajor", true),
            ("quantity(device.extra.nvlink + 'Gi').isLessThan(quantity('1Ti'))", true),
        ] {
            let selector = parse_selector(source).unwrap();
            assert_eq!(selector.matches(&h100()), expected, "{source}");
        }
    }

    /// `integration-tests/testkit` asks a real scheduler the same.
    #[test]
    fn selectors_of_dra_match_as_in_kubernetes() {
        let lines = include_str!("../../tests/dra-selectors.txt").lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (expected, source) = line.split_once(' ').unwrap();
            assert_eq!(parse_selector(source).unwrap().matches(&h100()), expected == "yes", "{source}");
        }
    }

    /// Other vendors' drivers, and unknown values: as in DRA, the attributes are absent.
    #[test]
    fn attributes_of_dra_are_absent_when_unknown() {
        let instinct = DeviceFacts {
            product_name: "AMD_Instinct_MI300X_OAM".into(),
            memory_mib: 196_608,
            driver_version: "6.10.5".into(),
            ..DeviceFacts::default()
        };
        let unknown = DeviceFacts { cuda_compute_capability: "9.0".into(), ..DeviceFacts::default() };
        for source in [
            "device.attributes['gpu.nvidia.com'].productName != ''",
            "device.attributes['gpu.nvidia.com'].driverVersion.isLessThan(semver('999.0.0'))",
            "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('0'))",
            "has(device.attributes['gpu.nvidia.com'].driverVersion)",
        ] {
            let selector = parse_selector(source).unwrap();
            assert!(selector.matches(&h100()), "{source}");
            assert!(!selector.matches(&instinct) && !selector.matches(&unknown), "{source}");
        }
        let nvidia = parse_selector("'gpu.nvidia.com' in device.attributes").unwrap();
        assert!(nvidia.matches(&unknown) && !nvidia.matches(&instinct));
        let slice = parse_selector("device.attributes['gpu.nvidia.com'].type == 'mig'").unwrap();
        assert!(slice.matches(&DeviceFacts { sharing: "mig".into(), ..h100() }) && !slice.matches(&h100()));
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
            ("device.attributes['gpu.nvidia.com'].product == ''", ProblemCode::CelUnknownName, 36),
            ("device.attributes['gpu.amd.com'].productName == ''", ProblemCode::CelUnknownName, 18),
            ("device.attributes[device.driver].productName == ''", ProblemCode::CelType, 17),
            ("device.capacity['gpu.nvidia.com'].memory > quantity('1Gi')", ProblemCode::CelType, 41),
            ("device.capacity['gpu.nvidia.com'].memory.isGreaterThan('40Gi')", ProblemCode::CelType, 41),
            ("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('40GB'))", ProblemCode::CelType, 64),
            ("device.attributes['gpu.nvidia.com'].driverVersion == '570.86.15'", ProblemCode::CelType, 50),
            ("semver('9.0') == semver('9.0.0')", ProblemCode::CelType, 7),
            ("semver('x', true) == semver('9.0.0')", ProblemCode::CelType, 7),
            ("device.brand.find('a{9}') == ''", ProblemCode::CelTooCostly, 18),
            ("device.brand.findAll(device.brand, 1).size() > 0", ProblemCode::CelTooCostly, 20),
            ("device.brand.replace('a', 'aaaaaaaa') == ''", ProblemCode::CelUnknownName, 13),
            ("device.brand.split('').join('aaaaaa') == ''", ProblemCode::CelUnknownName, 23),
            ("'%s'.format([device.brand]) == ''", ProblemCode::CelUnknownName, 5),
            ("quantity('1').asApproximateFloat() == quantity('1')", ProblemCode::CelUnknownName, 14),
            ("[device.brand].sum() == 1", ProblemCode::CelType, 15),
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
            let text = unit.repeat(MAX_EXPRESSION_BYTES / unit.len());
            assert!(parse_selector(&text).is_err(), "{unit}");
            let closed = format!("{}1", unit.repeat(MAX_EXPRESSION_BYTES / unit.len() - 2));
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
        assert!(compile_selector(&"x".repeat(MAX_EXPRESSION_BYTES + 1)).is_err());
    }
}
