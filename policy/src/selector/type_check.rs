//! Checks names, types and cost of a parsed selector.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SelectExpr, SourceInfo, operators};

use super::SelectorError;
use crate::device::{ATTRIBUTES, AttributeType};
use crate::limits::{MAX_PATTERN_BYTES, MAX_SELECTOR_DEPTH};
use crate::problem::ProblemCode;
use crate::problem::suggest::did_you_mean;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Text,
    Device,
    TextMap,
    ListOf(Scalar),
    /// A subexpression has an error. Suppresses errors that follow from it.
    Invalid,
}

/// The type of a list item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    Bool,
    Int,
    Text,
}

impl Type {
    const fn noun(self) -> &'static str {
        match self {
            Self::Bool => "a condition",
            Self::Int => "a number",
            Self::Text => "text",
            Self::Device => "the device",
            Self::TextMap => "`device.extra`",
            Self::ListOf(_) => "a list",
            Self::Invalid => "unknown",
        }
    }

    const fn scalar(self) -> Option<Scalar> {
        match self {
            Self::Bool => Some(Scalar::Bool),
            Self::Int => Some(Scalar::Int),
            Self::Text => Some(Scalar::Text),
            Self::Device | Self::TextMap | Self::ListOf(_) | Self::Invalid => None,
        }
    }
}

impl Scalar {
    const fn as_type(self) -> Type {
        match self {
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Text => Type::Text,
        }
    }
}

/// Checks a selector. A failure has at least one error.
pub(super) fn check_types(source: &str, expression: &IdedExpr, places: &SourceInfo) -> Result<(), Vec<SelectorError>> {
    let mut checker = Checker { source, places, errors: Vec::new() };
    let found = checker.type_of(expression, 0);
    if !matches!(found, Type::Bool | Type::Invalid) {
        let message = format!("the selector must be a condition, but it is {}", found.noun());
        checker.report(expression.id, ProblemCode::CelType, message, "compare it with something");
    }
    if checker.errors.is_empty() { Ok(()) } else { Err(checker.errors) }
}

struct Checker<'c> {
    source: &'c str,
    places: &'c SourceInfo,
    errors: Vec<SelectorError>,
}

impl Checker<'_> {
    /// Records an error at the expression `id`. Returns [`Type::Invalid`].
    fn report(&mut self, id: u64, code: ProblemCode, message: impl Into<String>, remedy: impl Into<String>) -> Type {
        let (start, stop) = self.places.offset_for(id).unwrap_or_default();
        let (start, stop) = (start as usize, stop as usize);
        self.errors.push(SelectorError {
            at: start,
            width: (stop + 1).saturating_sub(start).clamp(1, self.source.len().max(1)),
            code,
            message: message.into(),
            remedy: remedy.into(),
        });
        Type::Invalid
    }

    /// Like [`report`](Self::report), but underlines `word`: CEL gives the position of the `.` before a field and of
    /// the `(` after a function.
    fn report_at_word(
        &mut self,
        id: u64,
        word: &str,
        code: ProblemCode,
        message: String,
        remedy: impl Into<String>,
    ) -> Type {
        let found = self.report(id, code, message, remedy);
        let chars: Vec<char> = self.source.chars().collect();
        let length = word.chars().count();
        if let Some(error) = self.errors.last_mut() {
            let is_word = |at: &usize| chars.iter().skip(*at).take(length).copied().eq(word.chars());
            let after = (error.at..chars.len())
                .take_while(|at| *at == error.at || chars[at - 1] == '.' || chars[at - 1].is_whitespace());
            let before = error.at.checked_sub(length);
            if let Some(at) = before.filter(is_word).or_else(|| after.into_iter().find(is_word)) {
                (error.at, error.width) = (at, length);
            }
        }
        found
    }

    fn type_of(&mut self, expression: &IdedExpr, depth: usize) -> Type {
        let id = expression.id;
        if depth > MAX_SELECTOR_DEPTH {
            let message = format!("the selector nests more than {MAX_SELECTOR_DEPTH} levels deep");
            return self.report(
                id,
                ProblemCode::CelTooCostly,
                message,
                "split it into several classes, or use `in [..]`",
            );
        }
        match &expression.expr {
            Expr::Literal(literal) => self.literal(id, literal),
            Expr::Ident(name) => self.identifier(id, name),
            Expr::Select(select) => self.select(id, select, depth),
            Expr::Call(call) => self.call(id, call, depth),
            Expr::List(list) => {
                let types: Vec<Type> = list.elements.iter().map(|element| self.type_of(element, depth + 1)).collect();
                let Some(first) = types.iter().find_map(|found| found.scalar()) else {
                    return if types.contains(&Type::Invalid) {
                        Type::Invalid
                    } else {
                        self.report(id, ProblemCode::CelType, "a list must have texts or numbers", "")
                    };
                };
                if types.iter().any(|found| *found != Type::Invalid && found.scalar() != Some(first)) {
                    return self.report(
                        id,
                        ProblemCode::CelType,
                        "the list mixes types",
                        "write all of them as text, or all as numbers",
                    );
                }
                Type::ListOf(first)
            }
            Expr::Comprehension(_) => self.report(
                id,
                ProblemCode::CelTooCostly,
                "`all`, `exists`, `map` and `filter` are not allowed in selectors",
                "use `in [..]`, `&&` and `||`: a selector looks at one device",
            ),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => self.report(
                id,
                ProblemCode::CelType,
                "maps and messages are not allowed in selectors",
                "compare the attributes of `device`",
            ),
        }
    }

    fn literal(&mut self, id: u64, literal: &LiteralValue) -> Type {
        match literal {
            LiteralValue::Boolean(_) => Type::Bool,
            LiteralValue::Int(_) => Type::Int,
            LiteralValue::String(_) => Type::Text,
            LiteralValue::Double(_) => self.report(
                id,
                ProblemCode::CelType,
                "fractions are not allowed in selectors",
                "write a whole number: memory is in MiB",
            ),
            LiteralValue::UInt(_) => {
                self.report(id, ProblemCode::CelType, "unsigned numbers are not allowed in selectors", "remove the `u`")
            }
            LiteralValue::Bytes(_) | LiteralValue::Null => self.report(
                id,
                ProblemCode::CelType,
                "bytes and null are not allowed in selectors",
                "unknown attributes are `\"\"` or 0",
            ),
        }
    }

    fn identifier(&mut self, id: u64, name: &str) -> Type {
        if name == "device" {
            return Type::Device;
        }
        let remedy = match ATTRIBUTES.iter().find(|attribute| attribute.name == name) {
            Some(_) => format!("did you mean `device.{name}`?"),
            None => "the only variable is `device`".to_owned(),
        };
        self.report(id, ProblemCode::CelUnknownName, format!("there is no variable `{name}`"), remedy)
    }

    fn select(&mut self, id: u64, select: &SelectExpr, depth: usize) -> Type {
        let found = match self.type_of(&select.operand, depth + 1) {
            Type::Device => match ATTRIBUTES.iter().find(|attribute| attribute.name == select.field) {
                Some(attribute) => match attribute.attribute_type {
                    AttributeType::Text => Type::Text,
                    AttributeType::Number => Type::Int,
                    AttributeType::TextMap => Type::TextMap,
                },
                None => {
                    let known: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
                    let message = format!("a device has no attribute `{}`", select.field);
                    self.report_at_word(
                        id,
                        &select.field,
                        ProblemCode::CelUnknownName,
                        message,
                        did_you_mean(&select.field, &known),
                    )
                }
            },
            Type::TextMap => Type::Text,
            Type::Invalid => Type::Invalid,
            other => {
                let message = format!("{} has no field `{}`", other.noun(), select.field);
                self.report(id, ProblemCode::CelType, message, "")
            }
        };
        if select.test && found != Type::Invalid { Type::Bool } else { found }
    }

    fn call(&mut self, id: u64, call: &CallExpr, depth: usize) -> Type {
        let target = call.target.as_ref().map(|target| self.type_of(target, depth + 1));
        let types: Vec<Type> = call.args.iter().map(|argument| self.type_of(argument, depth + 1)).collect();
        if target == Some(Type::Invalid) || types.contains(&Type::Invalid) {
            return Type::Invalid;
        }
        match (target, call.func_name.as_str(), types.as_slice()) {
            (None, operators::LOGICAL_AND | operators::LOGICAL_OR, [Type::Bool, Type::Bool]) => Type::Bool,
            (None, operators::LOGICAL_NOT, [Type::Bool]) => Type::Bool,
            (None, operators::EQUALS | operators::NOT_EQUALS, [left, right])
                if left == right && left.scalar().is_some() =>
            {
                Type::Bool
            }
            (
                None,
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [Type::Int, Type::Int],
            ) => Type::Bool,
            (
                None,
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [Type::Text, Type::Text],
            ) => self.report(
                id,
                ProblemCode::CelType,
                "texts have no useful order: \"10.0\" comes before \"9.0\"",
                "compare numbers: `device.cudaComputeMajor`, `device.cudaComputeMinor`, `device.driverMajor`",
            ),
            (
                None,
                operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
                [Type::Int, Type::Int],
            )
            | (None, operators::NEGATE, [Type::Int]) => Type::Int,
            (None, operators::CONDITIONAL, [Type::Bool, left, right]) if left == right => *left,
            (None, operators::IN, [element, Type::ListOf(item)]) if element.scalar() == Some(*item) => Type::Bool,
            (None, operators::IN, [Type::Text, Type::TextMap]) => Type::Bool,
            (None, operators::INDEX, [Type::TextMap, Type::Text]) => Type::Text,
            (None, operators::INDEX, [Type::ListOf(item), Type::Int]) => item.as_type(),
            (Some(Type::Text), "startsWith" | "endsWith" | "contains", [Type::Text]) => Type::Bool,
            (Some(Type::Text), "size", []) | (None, "size", [Type::Text]) => Type::Int,
            (Some(Type::Text), "matches", [Type::Text]) => self.check_matches_call(id, call),
            (target, name, types) => self.report_invalid_call(id, target, name, types),
        }
    }

    /// Checks a call of `matches`. The pattern is a short literal without counted repetition, because every evaluation
    /// compiles it.
    fn check_matches_call(&mut self, id: u64, call: &CallExpr) -> Type {
        let literal = call.args.first().and_then(|argument| match &argument.expr {
            Expr::Literal(LiteralValue::String(text)) => Some((argument.id, text.inner())),
            _ => None,
        });
        let Some((place, pattern)) = literal else {
            return self.report(
                id,
                ProblemCode::CelTooCostly,
                "the pattern of `matches` must be a literal",
                "write it in quotes",
            );
        };
        if pattern.len() > MAX_PATTERN_BYTES || pattern.contains(['{', '\\']) {
            let message = format!("the pattern is longer than {MAX_PATTERN_BYTES} bytes, or uses `{{` or `\\`");
            return self.report(place, ProblemCode::CelTooCostly, message, "use `startsWith`, `contains` or `in [..]`");
        }
        match is_pattern(pattern) {
            true => Type::Bool,
            false => self.report(place, ProblemCode::CelSyntax, format!("`{pattern}` is not a regular expression"), ""),
        }
    }

    fn report_invalid_call(&mut self, id: u64, target: Option<Type>, name: &str, types: &[Type]) -> Type {
        const METHODS: [&str; 5] = ["startsWith", "endsWith", "contains", "matches", "size"];
        if let Some(symbol) = operator_symbol(name) {
            let nouns: Vec<&str> = types.iter().map(|found| found.noun()).collect();
            let message = format!("`{symbol}` does not apply to {}", nouns.join(" and "));
            return self.report(id, ProblemCode::CelType, message, "both sides must be of the same type");
        }
        if METHODS.contains(&name) {
            let of = target.map_or_else(String::new, |target| format!(" of {}", target.noun()));
            let message = format!("`{name}`{of} does not work here");
            return self.report_at_word(
                id,
                name,
                ProblemCode::CelType,
                message,
                format!("write `device.productName.{name}(..)`"),
            );
        }
        let message = format!("there is no function `{name}` in selectors");
        self.report_at_word(id, name, ProblemCode::CelUnknownName, message, did_you_mean(name, &METHODS))
    }
}

/// The symbol of an operator, which CEL names `_symbol_`.
fn operator_symbol(name: &str) -> Option<String> {
    if name == operators::IN {
        return Some("in".to_owned());
    }
    let bare: String = name.chars().filter(|c| *c != '_').collect();
    (!bare.is_empty() && bare.chars().all(|c| c.is_ascii_punctuation()) && name != bare).then_some(bare)
}

/// Whether CEL can compile the pattern. Evaluates `"".matches(pattern)` to find out.
fn is_pattern(pattern: &str) -> bool {
    use cel::common::types::CelString;
    let call = IdedExpr {
        id: 1,
        expr: Expr::Call(CallExpr {
            func_name: "matches".to_owned(),
            target: Some(Box::new(IdedExpr {
                id: 2,
                expr: Expr::Literal(LiteralValue::String(CelString::from(String::new()))),
            })),
            args: vec![IdedExpr {
                id: 3,
                expr: Expr::Literal(LiteralValue::String(CelString::from(pattern.to_owned()))),
            }],
        }),
    };
    let context = cel::Context::with_env(std::sync::Arc::clone(&super::ENVIRONMENT));
    cel::Value::resolve(&call, &context).is_ok()
}
