//! Conditions of rules in a form that evaluates without allocating. The CEL interpreter allocates for every value that it
//! reads, and a busy broker decides on every request for every donor under every rule.

use std::cmp::Ordering;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};

use super::QuantityValue;
use super::rule_field::{RuleField, RuleValue};

/// A condition, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CompiledCondition {
    All(Box<[Self; 2]>),
    Any(Box<[Self; 2]>),
    Not(Box<Self>),
    Constant(bool),
    Compare(Operand, Comparison, Operand),
    OneOf(Operand, Vec<Operand>),
    Text(Operand, TextTest, Operand),
    /// Only the interpreter can evaluate it.
    Unknown,
}

/// A field, or a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Field(RuleField),
    Text(Box<str>),
    Int(i64),
    Quantity(QuantityValue),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

impl CompiledCondition {
    /// Compiles an expression whose types are checked.
    pub(super) fn of(expression: &IdedExpr) -> Self {
        match &expression.expr {
            Expr::Literal(LiteralValue::Boolean(value)) => Self::Constant(*value.inner()),
            Expr::Call(call) => Self::of_call(call).unwrap_or(Self::Unknown),
            _ => Self::Unknown,
        }
    }

    /// Whether it holds; `None` if only the interpreter knows, or if the evaluation fails. As in CEL, a part that decides
    /// the whole does so whatever the others are.
    pub(super) fn holds<'f>(&'f self, value_of: &impl Fn(RuleField) -> RuleValue<'f>) -> Option<bool> {
        match self {
            Self::All(parts) => Self::decide(parts, false, value_of),
            Self::Any(parts) => Self::decide(parts, true, value_of),
            Self::Not(part) => part.holds(value_of).map(|holds| !holds),
            Self::Constant(value) => Some(*value),
            Self::Compare(left, comparison, right) => comparison.holds(left.value(value_of), right.value(value_of)),
            Self::OneOf(item, list) => {
                let item = item.value(value_of);
                Some(list.iter().any(|other| other.value(value_of) == item))
            }
            Self::Text(whole, test, part) => match (whole.value(value_of), part.value(value_of)) {
                (RuleValue::Text(whole), RuleValue::Text(part)) => Some(match test {
                    TextTest::StartsWith => whole.starts_with(part),
                    TextTest::EndsWith => whole.ends_with(part),
                    TextTest::Contains => whole.contains(part),
                }),
                _ => None,
            },
            Self::Unknown => None,
        }
    }

    /// The value of two parts of which either decides the whole if its value is `decisive`.
    fn decide<'f>(
        [left, right]: &'f [Self; 2],
        decisive: bool,
        value_of: &impl Fn(RuleField) -> RuleValue<'f>,
    ) -> Option<bool> {
        match left.holds(value_of) {
            Some(value) if value == decisive => Some(decisive),
            Some(_) => right.holds(value_of),
            None => right.holds(value_of).filter(|value| *value == decisive),
        }
    }

    fn of_call(call: &CallExpr) -> Option<Self> {
        let name = call.func_name.as_str();
        match (&call.target, name, call.args.as_slice()) {
            (None, operators::LOGICAL_AND, [left, right]) => {
                Some(Self::All(Box::new([Self::of(left), Self::of(right)])))
            }
            (None, operators::LOGICAL_OR, [left, right]) => {
                Some(Self::Any(Box::new([Self::of(left), Self::of(right)])))
            }
            (None, operators::LOGICAL_NOT, [part]) => Some(Self::Not(Box::new(Self::of(part)))),
            (None, operators::IN, [item, list]) => {
                let Expr::List(list) = &list.expr else { return None };
                let items: Option<Vec<Operand>> = list.elements.iter().map(Operand::of).collect();
                Some(Self::OneOf(Operand::of(item)?, items?))
            }
            (None, name, [left, right]) => {
                let comparison = Comparison::of_operator(name)?;
                if let Some((left, right)) = compared_with_zero(left, right) {
                    return Some(Self::Compare(left, comparison, right));
                }
                Some(Self::Compare(Operand::of(left)?, comparison, Operand::of(right)?))
            }
            (Some(target), "isGreaterThan", [other]) => {
                Some(Self::Compare(Operand::of(target)?, Comparison::Greater, Operand::of(other)?))
            }
            (Some(target), "isLessThan", [other]) => {
                Some(Self::Compare(Operand::of(target)?, Comparison::Less, Operand::of(other)?))
            }
            (Some(whole), name, [part]) => {
                let test = match name {
                    "startsWith" => TextTest::StartsWith,
                    "endsWith" => TextTest::EndsWith,
                    "contains" => TextTest::Contains,
                    _ => return None,
                };
                Some(Self::Text(Operand::of(whole)?, test, Operand::of(part)?))
            }
            _ => None,
        }
    }
}

/// The operands of `left.compareTo(right)`, which is compared with the literal 0.
fn compared_with_zero(left: &IdedExpr, right: &IdedExpr) -> Option<(Operand, Operand)> {
    let (Expr::Call(call), Some(Operand::Int(0))) = (&left.expr, Operand::of(right)) else { return None };
    match (&call.target, call.func_name.as_str(), call.args.as_slice()) {
        (Some(target), "compareTo", [other]) => Some((Operand::of(target)?, Operand::of(other)?)),
        _ => None,
    }
}

impl Operand {
    fn of(expression: &IdedExpr) -> Option<Self> {
        match &expression.expr {
            Expr::Literal(LiteralValue::String(text)) => Some(Self::Text(text.inner().into())),
            Expr::Literal(LiteralValue::Int(value)) => Some(Self::Int(*value.inner())),
            Expr::Select(select) if !select.test => match &select.operand.expr {
                Expr::Ident(variable) => RuleField::named(variable, &select.field).map(Self::Field),
                _ => None,
            },
            Expr::Call(call) => match (&call.target, call.func_name.as_str(), call.args.as_slice()) {
                (None, "quantity", [amount]) => match Self::of(amount)? {
                    Self::Text(text) => QuantityValue::parse(&text).map(Self::Quantity),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }

    fn value<'f>(&'f self, value_of: &impl Fn(RuleField) -> RuleValue<'f>) -> RuleValue<'f> {
        match self {
            Self::Field(field) => value_of(*field),
            Self::Text(text) => RuleValue::Text(text),
            Self::Int(value) => RuleValue::Int(*value),
            Self::Quantity(value) => RuleValue::Quantity(*value),
        }
    }
}

impl Comparison {
    fn of_operator(name: &str) -> Option<Self> {
        Some(match name {
            operators::EQUALS => Self::Equal,
            operators::NOT_EQUALS => Self::NotEqual,
            operators::LESS => Self::Less,
            operators::LESS_EQUALS => Self::LessOrEqual,
            operators::GREATER => Self::Greater,
            operators::GREATER_EQUALS => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    /// `None` for values of different types, which the check of types refuses.
    fn holds(self, left: RuleValue<'_>, right: RuleValue<'_>) -> Option<bool> {
        let order = match (left, right) {
            (RuleValue::Text(left), RuleValue::Text(right)) => {
                return match self {
                    Self::Equal => Some(left == right),
                    Self::NotEqual => Some(left != right),
                    _ => None,
                };
            }
            (RuleValue::Int(left), RuleValue::Int(right)) => left.cmp(&right),
            (RuleValue::Quantity(left), RuleValue::Quantity(right)) => left.cmp(&right),
            _ => return None,
        };
        Some(match self {
            Self::Equal => order == Ordering::Equal,
            Self::NotEqual => order != Ordering::Equal,
            Self::Less => order == Ordering::Less,
            Self::LessOrEqual => order != Ordering::Greater,
            Self::Greater => order == Ordering::Greater,
            Self::GreaterOrEqual => order != Ordering::Less,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::expression::{RecordValue, context, parse_condition};

    const TEXTS: [&str; 5] = ["request.origin", "institution.region", "donor.region", "'north'", "''"];
    const NUMBERS: [&str; 4] = ["class.rank", "tenant.weight", "1", "0"];
    const QUANTITIES: [&str; 4] = ["request.gpus", "lease.gpus", "quantity('1')", "quantity('500m')"];
    const COMPARISONS: [&str; 6] = ["==", "!=", "<", "<=", ">", ">="];

    /// Small domains, so that comparisons come out both ways.
    #[derive(Clone, Debug)]
    struct Values {
        texts: [&'static str; 3],
        numbers: [i64; 2],
        gpus: [u64; 2],
    }

    impl Values {
        fn of(&self, field: RuleField) -> RuleValue<'_> {
            match field {
                RuleField::RequestOrigin => RuleValue::Text(self.texts[0]),
                RuleField::InstitutionRegion => RuleValue::Text(self.texts[1]),
                RuleField::ClassRank => RuleValue::Int(self.numbers[0]),
                RuleField::TenantWeight => RuleValue::Int(self.numbers[1]),
                RuleField::RequestGpus => RuleValue::Quantity(QuantityValue::of_milli(self.gpus[0])),
                RuleField::LeaseGpus => RuleValue::Quantity(QuantityValue::of_milli(self.gpus[1])),
                _ => RuleValue::Text(self.texts[2]),
            }
        }

        fn named(&self, variable: &str, field: &str) -> Option<Box<dyn cel::common::value::Val + '_>> {
            Some(self.of(RuleField::named(variable, field)?).boxed())
        }
    }

    fn values() -> impl Strategy<Value = Values> {
        let text = || select(vec!["north", "northern", ""]);
        let (numbers, gpus) = ([0_i64..3, 0_i64..3], [select(vec![500_u64, 1_000, 1_500]), select(vec![500, 1_000])]);
        ([text(), text(), text()], numbers, gpus).prop_map(|(texts, numbers, gpus)| Values { texts, numbers, gpus })
    }

    /// What compiles in full.
    fn atom() -> impl Strategy<Value = String> {
        let text = || select(TEXTS.to_vec());
        let (number, quantity) = (|| select(NUMBERS.to_vec()), || select(QUANTITIES.to_vec()));
        let comparison = || select(COMPARISONS.to_vec());
        let equality = || select(COMPARISONS[..2].to_vec());
        let test = select(vec!["startsWith", "endsWith", "contains"]);
        prop_oneof![
            (text(), equality(), text()).prop_map(|(left, is, right)| format!("{left} {is} {right}")),
            (number(), comparison(), number()).prop_map(|(left, is, right)| format!("{left} {is} {right}")),
            (quantity(), equality(), quantity()).prop_map(|(left, is, right)| format!("{left} {is} {right}")),
            (quantity(), select(vec!["isGreaterThan", "isLessThan"]), quantity())
                .prop_map(|(left, is, right)| format!("{left}.{is}({right})")),
            (quantity(), quantity(), comparison())
                .prop_map(|(left, right, is)| format!("{left}.compareTo({right}) {is} 0")),
            (text(), text(), text()).prop_map(|(item, one, other)| format!("{item} in [{one}, {other}]")),
            (number(), number()).prop_map(|(item, one)| format!("{item} in [{one}, 2]")),
            (text(), test, text()).prop_map(|(whole, test, part)| format!("{whole}.{test}({part})")),
            select(vec!["true".to_owned(), "false".to_owned()]),
        ]
    }

    /// What only the interpreter evaluates; the first two fail for some or all values.
    fn foreign() -> impl Strategy<Value = String> {
        select(vec![
            "int(donor.region) == 0".to_owned(),
            "[9223372036854775807, class.rank].sum() > 0".to_owned(),
            "donor.region.size() > 5".to_owned(),
            "(class.rank > 1 ? donor.region : request.origin) == 'north'".to_owned(),
        ])
    }

    fn tree(atom: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
        atom.prop_recursive(4, 12, 2, |part| {
            let pair = || (part.clone(), part.clone());
            prop_oneof![
                pair().prop_map(|(left, right)| format!("({left}) && ({right})")),
                pair().prop_map(|(left, right)| format!("({left}) || ({right})")),
                part.prop_map(|part| format!("!({part})")),
            ]
        })
    }

    /// The compiled value, and the interpreter's, which is `None` where it fails.
    fn both(source: &str, values: &Values) -> (Option<bool>, Option<bool>) {
        let (condition, _) = parse_condition(source).unwrap();
        let context = context([
            ("request", RecordValue::boxed(values, |values, field| values.named("request", field))),
            ("tenant", RecordValue::boxed(values, |values, field| values.named("tenant", field))),
            ("institution", RecordValue::boxed(values, |values, field| values.named("institution", field))),
            ("donor", RecordValue::boxed(values, |values, field| values.named("donor", field))),
            ("class", RecordValue::boxed(values, |values, field| values.named("class", field))),
            ("lease", RecordValue::boxed(values, |values, field| values.named("lease", field))),
        ]);
        (condition.holds(&|field| values.of(field)), condition.interpret(&context).ok())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_compiled_condition_has_the_interpreters_value(source in tree(atom()), values in values()) {
            let (compiled, interpreted) = both(&source, &values);
            prop_assert_eq!(compiled, interpreted, "{}", source);
            prop_assert!(compiled.is_some(), "{}", source);
        }

        #[test]
        fn what_is_not_compiled_is_left_to_the_interpreter(
            source in tree(prop_oneof![atom(), foreign()]),
            values in values(),
        ) {
            let (compiled, interpreted) = both(&source, &values);
            if compiled.is_some() {
                prop_assert_eq!(compiled, interpreted, "{}", source);
            }
        }
    }
}
