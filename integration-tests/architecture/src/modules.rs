//! The modules of a crate: the declarations, imports and named paths of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::TokenTree;
use syn::{Attribute, Item, Meta};

use crate::paths::{Segments, imported, paths};

/// A module's path from the crate's root.
pub(crate) type Module = Vec<String>;

/// Re-exports that are followed for one path; more are taken for a circle.
const MAX_REEXPORTS: usize = 16;

/// All modules of one crate.
#[derive(Default)]
pub(crate) struct Modules {
    scopes: BTreeMap<Module, Scope>,
    /// Each path that is named, with the module that names it.
    pub(crate) paths: Vec<(Module, Segments)>,
}

/// Declarations and imports of one module.
#[derive(Default)]
struct Scope {
    /// The module whose file holds this one.
    file: Module,
    modules: BTreeSet<String>,
    items: BTreeSet<String>,
    imports: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
}

impl Modules {
    /// Reads a crate from its root file.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut modules = Self::default();
        let folder = root.parent().ok_or_else(|| format!("{} is in no folder", root.display()))?;
        modules.read_file(root, folder, Module::new())?;
        Ok(modules)
    }

    fn read_file(&mut self, file: &Path, folder: &Path, module: Module) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.read_items(parsed.items, &module.clone(), folder, module)
    }

    fn read_items(&mut self, items: Vec<Item>, file: &Module, folder: &Path, module: Module) -> Result<(), String> {
        let mut scope = Scope { file: file.clone(), ..Scope::default() };
        let mut children = Vec::new();
        for item in items.into_iter().filter(|item| !is_for_tests(item)) {
            match item {
                Item::Mod(child) => {
                    scope.modules.insert(child.ident.to_string());
                    children.push(child);
                }
                Item::Use(import) => {
                    for (name, path) in imported(&import.tree) {
                        self.paths.push((module.clone(), path.clone()));
                        match name {
                            Some(name) => _ = scope.imports.insert(name, path),
                            None => scope.globs.push(path),
                        }
                    }
                }
                item => {
                    scope.items.extend(declared(&item));
                    self.paths.extend(paths(&item).into_iter().map(|path| (module.clone(), path)));
                }
            }
        }
        self.scopes.insert(module.clone(), scope);
        for child in children {
            let name = child.ident.to_string();
            let below = folder.join(&name);
            let path = [module.clone(), vec![name.clone()]].concat();
            match child.content {
                Some((_, items)) => self.read_items(items, file, &below, path)?,
                None => self.read_file(&folder.join(format!("{name}.rs")), &below, path)?,
            }
        }
        Ok(())
    }

    /// The module whose file holds `module`.
    pub(crate) fn file_of(&self, module: &Module) -> Module {
        self.scopes.get(module).map(|scope| scope.file.clone()).unwrap_or_default()
    }

    /// The file that declares `path`, as `module` writes it; `None` for other crates' items and for local names.
    pub(crate) fn declares(&self, module: &[String], path: &[String]) -> Option<Module> {
        self.follow(module, path, MAX_REEXPORTS)
    }

    fn follow(&self, module: &[String], path: &[String], steps: usize) -> Option<Module> {
        let steps = steps.checked_sub(1)?;
        let mut here = module.to_vec();
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => _ = here.pop(),
                _ => break,
            }
            rest = after;
        }
        let scope = self.scopes.get(&here)?;
        let Some((first, after)) = rest.split_first() else {
            return (rest.len() < path.len()).then(|| scope.file.clone());
        };
        if scope.modules.contains(first) {
            here.push(first.clone());
            let inside = [vec!["self".to_owned()], after.to_vec()].concat();
            return self.follow(&here, &inside, steps);
        }
        if scope.items.contains(first) {
            return Some(scope.file.clone());
        }
        if let Some(target) = scope.imports.get(first).filter(|target| target.as_slice() != path) {
            return self.follow(&here, &[target, after].concat(), steps);
        }
        scope.globs.iter().find_map(|glob| self.follow(&here, &[glob, rest].concat(), steps))
    }
}

/// Names that an item declares. For a macro call, those are the identifiers in its arguments.
fn declared(item: &Item) -> Vec<String> {
    let name = match item {
        Item::Fn(item) => &item.sig.ident,
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Const(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Macro(item) => {
            let tokens = item.mac.tokens.clone().into_iter();
            let idents = tokens.filter_map(|token| match token {
                TokenTree::Ident(ident) => Some(ident.to_string()),
                _ => None,
            });
            return item.ident.as_ref().map_or_else(|| idents.collect(), |name| vec![name.to_string()]);
        }
        _ => return Vec::new(),
    };
    vec![name.to_string()]
}

/// Whether only tests compile an item.
fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| match &attribute.meta {
        Meta::List(list) => list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "test"),
        Meta::Path(_) | Meta::NameValue(_) => false,
    })
}
