//! The file of a table: checked before hours of measuring, and replaced atomically with the new table.

use super::args::Args;
use crate::{Failure, Result};
use candle_tilegemm::internal::tuning::{cache_file, Host, Origin, Tuning};
use std::path::{Path, PathBuf};

pub struct Output {
    path: PathBuf,
    /// The file that is written first, then renamed: a reader sees the old table or the new table.
    partial: PathBuf,
}

impl Output {
    /// Determines the path, and checks that the path can be written.
    pub fn reserve(args: &Args, gpu: &str) -> Result<Self> {
        let path = args.out.clone().or_else(|| cache_file(gpu));
        let path = path.ok_or_else(|| {
            Failure::Usage("neither XDG_CACHE_HOME nor HOME is set; say where the table goes with --out FILE".into())
        })?;
        if path.exists() && !args.merge && !args.force {
            return Err(Failure::Usage(format!(
                "{} is there already; add --merge to keep what it has for other products, or --force to replace it",
                path.display()
            )));
        }
        let cannot = |e| format!("cannot write {}: {e}; name another file with --out", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(cannot)?;
        }
        let partial = path.with_extension("json.partial");
        std::fs::write(&partial, "").map_err(cannot)?;
        Ok(Self { partial, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The table to extend: an empty table, or the table in the file.
    pub fn start(&self, args: &Args, origin: Origin, host: &Host) -> Result<Tuning> {
        let name = self.path.display().to_string();
        if !args.merge || !self.path.exists() {
            return Ok(Tuning::new(name, origin));
        }
        let old = Tuning::load(&self.path).and_then(|old| old.verify(host).map(|()| old));
        match old {
            Ok(old) => {
                if !old.refused_counts().is_none() {
                    crate::print(format_args!("of {name}, {}; they are not kept", old.refused_counts()))?;
                }
                Ok(old.renew(name, origin))
            }
            Err(error) => Err(format!("{error}; it cannot be merged: replace it with --force").into()),
        }
    }

    pub fn write(&self, table: &Tuning) -> Result {
        let written =
            std::fs::write(&self.partial, table.to_text()).and_then(|()| std::fs::rename(&self.partial, &self.path));
        Ok(written.map_err(|e| format!("cannot write {}: {e}", self.path.display()))?)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // The file is already gone where the table was written.
        let _ = std::fs::remove_file(&self.partial);
    }
}
