//! The modules of a crate as the compiler sees them: which file each is, and which others it names.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree};

/// A module's path below the root of its crate; empty for the root.
pub(crate) type ModulePath = Vec<String>;

/// A module that is a file.
pub(crate) struct Module {
    /// Its file, below the root of the workspace.
    pub(crate) file: PathBuf,
    /// Only tests and models are built with it.
    pub(crate) is_test: bool,
    /// Modules of the same crate that its code names, those of its own tests left out. A name that a module
    /// re-exports (`use crate::Cache`) counts as one of the module that declares it.
    pub(crate) names: BTreeSet<ModulePath>,
    /// What it imports, for itself, its children, or others: the name that it gives, and the path.
    imports: Vec<(String, ModulePath)>,
}

/// A library or binary: what `src/lib.rs` or `src/main.rs` is made of.
pub(crate) struct Crate {
    /// The crate's folder, below the root of the workspace.
    pub(crate) dir: PathBuf,
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

/// The files that a target is made of, given its root, below the root of the workspace.
pub(crate) fn files(root: &Path, top: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut modules = BTreeMap::new();
    read(root, top, &[], false, &mut modules)?;
    Ok(modules.into_values().map(|module| module.file).collect())
}

/// Every crate of `crates/`.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let mut crates = Vec::new();
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(root.join("crates"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    dirs.sort();
    for dir in dirs {
        let dir = dir.strip_prefix(root).unwrap_or(&dir).to_owned();
        let mut modules = BTreeMap::new();
        for top in ["lib.rs", "main.rs"] {
            let file = dir.join("src").join(top);
            if root.join(&file).exists() {
                read(root, &file, &[], false, &mut modules)?;
            }
        }
        resolve(&mut modules);
        crates.push(Crate { dir, modules });
    }
    Ok(crates)
}

/// Reads the module `path` from `file`, and the modules below it.
fn read(
    root: &Path,
    file: &Path,
    path: &[String],
    is_test: bool,
    modules: &mut BTreeMap<ModulePath, Module>,
) -> Result<()> {
    let shown = file.display();
    let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("{shown}"))?;
    let syntax = syn::parse_file(&text).with_context(|| format!("{shown}"))?;
    let mut collector = Collector { module: path.to_vec(), ..Collector::default() };
    collector.visit_file(&syntax);
    // `a.rs` and `a/mod.rs` have their children in `a/`, a target's root beside itself.
    let beside = path.is_empty() || file.file_stem().is_some_and(|stem| stem == "mod");
    let folder = if beside { file.with_file_name("") } else { file.with_extension("") };
    for (name, child_is_test) in collector.children {
        let flat = folder.join(format!("{name}.rs"));
        let nested = folder.join(&name).join("mod.rs");
        let child = if root.join(&flat).exists() { flat } else { nested };
        let child_path = [path, &[name]].concat();
        read(root, &child, &child_path, is_test || child_is_test, modules)?;
    }
    let file = file.to_owned();
    let Collector { names, imports, .. } = collector;
    modules.insert(path.to_vec(), Module { file, is_test, names, imports });
    Ok(())
}

/// Shortens every named path to the module that it leads into.
fn resolve(modules: &mut BTreeMap<ModulePath, Module>) {
    let imports = modules.iter().map(|(path, module)| (path.clone(), module.imports.clone()));
    let imports = imports.collect::<BTreeMap<_, _>>();
    for (path, module) in modules {
        let named = std::mem::take(&mut module.names);
        module.names = named
            .into_iter()
            .map(|named| declared_in(named, &imports))
            .filter(|named| !named.is_empty() && named != path)
            .collect();
    }
}

/// The module that a path leads into, or, if that imports the next name, the module that declares it.
fn declared_in(
    mut named: ModulePath,
    modules: &BTreeMap<ModulePath, Vec<(String, ModulePath)>>,
) -> ModulePath {
    let mut seen = BTreeSet::new();
    loop {
        let end = (0..=named.len()).rev().find(|end| modules.contains_key(&named[..*end]));
        let (module, rest) = named.split_at(end.unwrap_or(0));
        // `use serde::{self}` would lead from a module to itself, for ever.
        let Some((name, rest)) =
            rest.split_first().filter(|(name, _)| seen.insert((module.to_vec(), (*name).clone())))
        else {
            return module.to_vec();
        };
        let imports = modules.get(module).map(Vec::as_slice).unwrap_or_default();
        match imports.iter().find(|(import, _)| import == name) {
            Some((_, path)) => named = [path, rest].concat(),
            None => return module.to_vec(),
        }
    }
}

/// Collects what a file's code names.
#[derive(Default)]
struct Collector {
    /// The module of the file.
    module: ModulePath,
    /// How many inline modules deep the visitor is.
    inline: usize,
    children: Vec<(String, bool)>,
    names: BTreeSet<ModulePath>,
    imports: Vec<(String, ModulePath)>,
}

impl Collector {
    /// Notes a path, given by its segments.
    fn name(&mut self, segments: &[String]) {
        self.names.extend(self.below_root(segments));
    }

    /// A path, given by its segments, below the root of the crate.
    fn below_root(&self, segments: &[String]) -> Option<ModulePath> {
        let first = segments.first()?;
        Some(match first.as_str() {
            "crate" => segments[1..].to_vec(),
            "super" => {
                let up = segments.iter().take_while(|segment| *segment == "super").count();
                let up_from_file = up.checked_sub(self.inline).filter(|up| *up > 0)?;
                let keep = self.module.len().checked_sub(up_from_file)?;
                let rest = &segments[up..];
                [&self.module[..keep], rest].concat()
            }
            "self" => [&self.module[..], &segments[1..]].concat(),
            // A child, or else a name from elsewhere, which leads to no module of this crate.
            _ if self.inline == 0 => [&self.module[..], segments].concat(),
            _ => return None,
        })
    }

    fn name_tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.name_tree(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.name_tree(prefix, tree));
            }
            UseTree::Name(name) if name.ident == "self" => {
                let of = prefix.last().cloned().unwrap_or_default();
                self.import(prefix, of);
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.import(&[&prefix[..], std::slice::from_ref(&name)].concat(), name);
            }
            UseTree::Rename(name) => {
                let path = [&prefix[..], &[name.ident.to_string()]].concat();
                self.import(&path, name.rename.to_string());
            }
            UseTree::Glob(_) => self.name(prefix),
        }
    }

    /// Notes a path that gets the name `name` in this module.
    fn import(&mut self, segments: &[String], name: String) {
        self.name(segments);
        if self.inline == 0
            && let Some(path) = self.below_root(segments)
        {
            self.imports.push((name, path));
        }
    }

    /// Notes the paths in what is passed to a macro.
    fn name_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 => colons += 1,
                other => {
                    self.name(&std::mem::take(&mut path));
                    colons = 0;
                    match other {
                        TokenTree::Ident(ident) => path.push(ident.to_string()),
                        TokenTree::Group(group) => self.name_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.name(&path);
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        match item {
            Item::Mod(module) if module.content.is_none() => self.visit_item_mod(module),
            _ if is_for_tests(attributes) => {}
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            // A file elsewhere, such as an example that a test runs: a target of its own, or unreached.
            return;
        }
        if module.content.is_none() {
            let name = module.ident.to_string();
            return self.children.push((name, is_for_tests(&module.attrs)));
        }
        self.inline += 1;
        visit::visit_item_mod(self, module);
        self.inline -= 1;
    }

    /// `pub(super)` names who may use an item, not what the item uses.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.name_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.name(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        self.name_tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

/// Whether an item is built for tests or models only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Ok(list) = attribute.meta.require_list() else { return false };
        let condition = list.tokens.to_string();
        list.path.is_ident("cfg")
            && !condition.starts_with("not")
            && ["test", "loom", "shuttle", "fuzzing"].iter().any(|word| condition.contains(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ModulePath {
        text.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// What the module `of` names, given each module with its text.
    fn names(modules: &[(&str, &str)], of: &str) -> Vec<String> {
        let read = |(module, text): &(&str, &str)| {
            let mut collector = Collector { module: path(module), ..Collector::default() };
            collector.visit_file(&syn::parse_file(text).unwrap());
            let Collector { names, imports, .. } = collector;
            (path(module), Module { file: PathBuf::new(), is_test: false, names, imports })
        };
        let mut modules = modules.iter().map(read).collect();
        resolve(&mut modules);
        modules[&path(of)].names.iter().map(|named| named.join("::")).collect()
    }

    #[test]
    fn a_name_that_the_root_exports_is_one_of_the_module_that_declares_it() {
        let root = ("", "mod a; mod b; pub use a::{A, deep::D as Deep}; use std::fs::File;");
        let modules = |text| {
            [root, ("a", "mod deep; pub struct A;"), ("a::deep", "pub struct D;"), ("b", text)]
        };
        for (text, named) in [
            ("use crate::A;", vec!["a"]),
            ("fn f() -> crate::A {}", vec!["a"]),
            ("use crate::{Deep, File};", vec!["a::deep"]),
            ("fn f() { super::Deep::new() }", vec!["a::deep"]),
            ("use serde::{self}; use io::x::io; fn f() { serde::x(io::y) }", vec![]),
        ] {
            assert_eq!(names(&modules(text), "b"), named, "{text}");
        }
    }

    #[test]
    fn a_name_that_a_parent_imports_is_not_the_parents() {
        let modules = [("", "mod a;"), ("a", "mod b; mod c; use b::B;"), ("a::b", "pub struct B;")];
        let child = ("a::c", "use super::B;");
        assert_eq!(names(&[modules[0], modules[1], modules[2], child], "a::c"), ["a::b"]);
    }
}
