//! The check of a parsed selector: names, types and cost, before it is ever run.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SelectExpr, SourceInfo, operators};

use super::Fault;
use crate::device::{ATTRIBUTES, AttributeType};
use crate::limits::{MAX_PATTERN_BYTES, MAX_SELECTOR_DEPTH};
use crate::problem::ProblemCode;
use crate::suggest::did_you_mean;

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Text,
    Device,
    TextMap,
    ListOf(Scalar),
    /// A fault was reported below; no further faults follow from it.
    Faulty,
}

/// What a list may hold.
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
            Self::Faulty => "unknown",
        }
    }

    const fn scalar(self) -> Option<Scalar> {
        match self {
            Self::Bool => Some(Scalar::Bool),
            Self::Int => Some(Scalar::Int),
            Self::Text => Some(Scalar::Text),
            Self::Device | Self::TextMap | Self::ListOf(_) | Self::Faulty => None,
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

/// Refuses what would nest deeply in the parser, which recurses before its tree can be measured. So that quoted text
/// can be told from the rest with certainty, escapes, triple quotes and comments are refused too.
pub(super) fn nesting(source: &str) -> Result<(), Vec<Fault>> {
    let fault = |at: usize, code: ProblemCode, message: String, remedy: &str| {
        Err(vec![Fault { at, width: 1, code, message, remedy: remedy.to_owned() }])
    };
    let (mut open, mut conditionals, mut chained, mut arithmetic) = (0_usize, 0_usize, 0_usize, 0_usize);
    let mut quote = None;
    let chars: Vec<char> = source.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let next = chars.get(at + 1).copied();
        if c == '\\' || (c == '/' && next == Some('/') && quote.is_none()) {
            return fault(
                at,
                ProblemCode::CelSyntax,
                "escapes and comments are not used in selectors".to_owned(),
                "use YAML comments",
            );
        }
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), '\n') => {
                return fault(
                    at,
                    ProblemCode::CelSyntax,
                    "quoted text must end on its line".to_owned(),
                    "close the quote",
                );
            }
            (Some(_), _) => {}
            (None, '\'' | '"') if next == Some(c) && chars.get(at + 2) == Some(&c) => {
                return fault(
                    at,
                    ProblemCode::CelSyntax,
                    "triple quotes are not used in selectors".to_owned(),
                    "use one quote",
                );
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            (None, '?') => conditionals += 1,
            (None, '+' | '*' | '/' | '%') => arithmetic += 1,
            (None, '-') => (arithmetic, chained) = (arithmetic + 1, chained + 1),
            (None, '!' | '.') => chained += 1,
            (None, '&' | '|') => chained = 0,
            (None, _) => {}
        }
        if open.max(conditionals).max(arithmetic / 2).max(chained / 2) > MAX_SELECTOR_DEPTH {
            let message = format!("the selector nests more than {MAX_SELECTOR_DEPTH} levels deep");
            return fault(at, ProblemCode::CelTooCostly, message, "split it into several classes, or use `in [..]`");
        }
    }
    Ok(())
}

/// Checks a selector; on failure, at least one fault.
pub(super) fn check(source: &str, expression: &IdedExpr, places: &SourceInfo) -> Result<(), Vec<Fault>> {
    let mut checker = Checker { source, places, faults: Vec::new() };
    let found = checker.type_of(expression, 0);
    if !matches!(found, Type::Bool | Type::Faulty) {
        let message = format!("the selector must be a condition, but it is {}", found.noun());
        checker.fault(expression.id, ProblemCode::CelType, message, "compare it with something");
    }
    if checker.faults.is_empty() { Ok(()) } else { Err(checker.faults) }
}

struct Checker<'c> {
    source: &'c str,
    places: &'c SourceInfo,
    faults: Vec<Fault>,
}

impl Checker<'_> {
    fn fault(&mut self, id: u64, code: ProblemCode, message: impl Into<String>, remedy: impl Into<String>) -> Type {
        let (start, stop) = self.places.offset_for(id).unwrap_or_default();
        let (start, stop) = (start as usize, stop as usize);
        self.faults.push(Fault {
            at: start,
            width: (stop + 1).saturating_sub(start).clamp(1, self.source.len().max(1)),
            code,
            message: message.into(),
            remedy: remedy.into(),
        });
        Type::Faulty
    }

    /// Like [`fault`](Self::fault), at a word: CEL gives the place of the `.` before a field, or of the `(` after a
    /// function.
    fn fault_at_word(
        &mut self,
        id: u64,
        word: &str,
        code: ProblemCode,
        message: String,
        remedy: impl Into<String>,
    ) -> Type {
        let found = self.fault(id, code, message, remedy);
        let chars: Vec<char> = self.source.chars().collect();
        let length = word.chars().count();
        if let Some(fault) = self.faults.last_mut() {
            let is_word = |at: &usize| chars.iter().skip(*at).take(length).copied().eq(word.chars());
            let after = (fault.at..chars.len())
                .take_while(|at| *at == fault.at || chars[at - 1] == '.' || chars[at - 1].is_whitespace());
            let before = fault.at.checked_sub(length);
            if let Some(at) = before.filter(is_word).or_else(|| after.into_iter().find(is_word)) {
                (fault.at, fault.width) = (at, length);
            }
        }
        found
    }

    fn type_of(&mut self, expression: &IdedExpr, depth: usize) -> Type {
        let id = expression.id;
        if depth > MAX_SELECTOR_DEPTH {
            let message = format!("the selector nests more than {MAX_SELECTOR_DEPTH} levels deep");
            return self.fault(
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
                    return if types.contains(&Type::Faulty) {
                        Type::Faulty
                    } else {
                        self.fault(id, ProblemCode::CelType, "a list here holds texts or numbers", "")
                    };
                };
                if types.iter().any(|found| *found != Type::Faulty && found.scalar() != Some(first)) {
                    return self.fault(
                        id,
                        ProblemCode::CelType,
                        "the list mixes types",
                        "write all of them as text, or all as numbers",
                    );
                }
                Type::ListOf(first)
            }
            Expr::Comprehension(_) => self.fault(
                id,
                ProblemCode::CelTooCostly,
                "`all`, `exists`, `map` and `filter` are not used in selectors",
                "use `in [..]`, `&&` and `||`: a selector looks at one device",
            ),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => self.fault(
                id,
                ProblemCode::CelType,
                "maps and messages are not used in selectors",
                "compare the attributes of `device`",
            ),
        }
    }

    fn literal(&mut self, id: u64, literal: &LiteralValue) -> Type {
        match literal {
            LiteralValue::Boolean(_) => Type::Bool,
            LiteralValue::Int(_) => Type::Int,
            LiteralValue::String(_) => Type::Text,
            LiteralValue::Double(_) => self.fault(
                id,
                ProblemCode::CelType,
                "fractions are not used in selectors",
                "write a whole number: memory is in MiB",
            ),
            LiteralValue::UInt(_) => {
                self.fault(id, ProblemCode::CelType, "unsigned numbers are not used in selectors", "leave the `u` away")
            }
            LiteralValue::Bytes(_) | LiteralValue::Null => self.fault(
                id,
                ProblemCode::CelType,
                "bytes and null are not used in selectors",
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
        self.fault(id, ProblemCode::CelUnknownName, format!("there is no variable `{name}`"), remedy)
    }

    fn select(&mut self, id: u64, select: &SelectExpr, depth: usize) -> Type {
        let found = match self.type_of(&select.operand, depth + 1) {
            Type::Device => match ATTRIBUTES.iter().find(|attribute| attribute.name == select.field) {
                Some(attribute) => match attribute.of_type {
                    AttributeType::Text => Type::Text,
                    AttributeType::Number => Type::Int,
                    AttributeType::TextMap => Type::TextMap,
                },
                None => {
                    let known: Vec<&str> = ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
                    let message = format!("a device has no attribute `{}`", select.field);
                    self.fault_at_word(
                        id,
                        &select.field,
                        ProblemCode::CelUnknownName,
                        message,
                        did_you_mean(&select.field, &known),
                    )
                }
            },
            Type::TextMap => Type::Text,
            Type::Faulty => Type::Faulty,
            other => {
                let message = format!("{} has no field `{}`", other.noun(), select.field);
                self.fault(id, ProblemCode::CelType, message, "")
            }
        };
        if select.test && found != Type::Faulty { Type::Bool } else { found }
    }

    fn call(&mut self, id: u64, call: &CallExpr, depth: usize) -> Type {
        let target = call.target.as_ref().map(|target| self.type_of(target, depth + 1));
        let types: Vec<Type> = call.args.iter().map(|argument| self.type_of(argument, depth + 1)).collect();
        if target == Some(Type::Faulty) || types.contains(&Type::Faulty) {
            return Type::Faulty;
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
            ) => self.fault(
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
            (Some(Type::Text), "matches", [Type::Text]) => self.pattern(id, call),
            (target, name, types) => self.no_such_call(id, target, name, types),
        }
    }

    /// A regular expression must be written out, short and without counted repetition, for it is compiled at each use.
    fn pattern(&mut self, id: u64, call: &CallExpr) -> Type {
        let literal = call.args.first().and_then(|argument| match &argument.expr {
            Expr::Literal(LiteralValue::String(text)) => Some((argument.id, text.inner())),
            _ => None,
        });
        let Some((place, pattern)) = literal else {
            return self.fault(
                id,
                ProblemCode::CelTooCostly,
                "the pattern of `matches` must be written out",
                "write it in quotes",
            );
        };
        if pattern.len() > MAX_PATTERN_BYTES || pattern.contains(['{', '\\']) {
            let message = format!("the pattern is longer than {MAX_PATTERN_BYTES} bytes, or uses `{{` or `\\`");
            return self.fault(place, ProblemCode::CelTooCostly, message, "use `startsWith`, `contains` or `in [..]`");
        }
        match is_pattern(pattern) {
            true => Type::Bool,
            false => self.fault(place, ProblemCode::CelSyntax, format!("`{pattern}` is not a regular expression"), ""),
        }
    }

    fn no_such_call(&mut self, id: u64, target: Option<Type>, name: &str, types: &[Type]) -> Type {
        const METHODS: [&str; 5] = ["startsWith", "endsWith", "contains", "matches", "size"];
        if let Some(symbol) = operator_symbol(name) {
            let nouns: Vec<&str> = types.iter().map(|found| found.noun()).collect();
            let message = format!("`{symbol}` cannot be used with {}", nouns.join(" and "));
            return self.fault(id, ProblemCode::CelType, message, "both sides must be of the same type");
        }
        if METHODS.contains(&name) {
            let of = target.map_or_else(String::new, |target| format!(" of {}", target.noun()));
            let message = format!("`{name}`{of} is not used like this");
            return self.fault_at_word(
                id,
                name,
                ProblemCode::CelType,
                message,
                format!("write `device.productName.{name}(..)`"),
            );
        }
        let message = format!("there is no function `{name}` in selectors");
        self.fault_at_word(id, name, ProblemCode::CelUnknownName, message, did_you_mean(name, &METHODS))
    }
}

/// The sign of an operator that CEL names `_sign_`.
fn operator_symbol(name: &str) -> Option<String> {
    if name == operators::IN {
        return Some("in".to_owned());
    }
    let bare: String = name.chars().filter(|c| *c != '_').collect();
    (!bare.is_empty() && bare.chars().all(|c| c.is_ascii_punctuation()) && name != bare).then_some(bare)
}

/// Whether CEL's regular expressions accept the pattern, found by running it once.
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
