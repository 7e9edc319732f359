package tallystick;

import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * How Spark writes a checkpoint to a disk: a temporary file in the same folder, then one call of the kernel.
 *
 * <ol>
 *   <li><i>The first one wins.</i> A file that must not be there yet (an entry of the offset or commit log) gets its
 *       name by {@code link}, which fails if the name is taken, whoever else tries. The second one gets a
 *       FileAlreadyExistsException. Spark's own managers look first and rename then.
 *   <li><i>Files that may be there</i> (state, when an epoch is done again) are replaced by {@code rename}: a reader
 *       has the old one or the new one.
 *   <li><i>Whole or not at all.</i> Until a stream is closed only its temporary file is there, which no list shows; a
 *       killed process may leave one, as with Spark's own. After a power failure it is as with Spark's own, too:
 *       nothing is synced here, because what must be is in the journal. docs/decisions/0006 has the argument.
 *   <li><i>No process is forked</i>, which is what makes Spark's own slow: they set modes that the umask sets anyway.
 *   <li><i>Others may read and go on.</i> Hadoop keeps the checksum of a file in {@code .NAME.crc} beside it, and
 *       checks what it reads if there is one. None is written here. One that is there is checked, hidden, and deleted
 *       with its file. Before a file is replaced it goes first: at no moment, and after no kill, is there a file with
 *       the checksum of another one.
 * </ol>
 *
 * Made by Spark, on the driver and on executors, for {@code spark.sql.streaming.checkpointFileManagerClass}. The jar
 * beside this file is built from it by scripts/build_jar.py.
 */
public final class LocalCheckpointFileManager implements CheckpointFileManager {
  private static final Logger LOG = LoggerFactory.getLogger(LocalCheckpointFileManager.class);
  private static final String TEMPORARY = ".tmp";

  private final Path root;

  /** For reading, names and deleting: Hadoop's own, so that these are what Spark's other managers do. */
  private final LocalFileSystem files;

  public LocalCheckpointFileManager(Path root, Configuration settings) throws IOException {
    URI named = root.toUri().getScheme() == null ? FileSystem.getDefaultUri(settings) : root.toUri();
    if (!"file".equals(named.getScheme())) {
      throw new IOException(root + " is not on a local disk: " + getClass().getName() + " writes checkpoints there only");
    }
    this.root = root;
    this.files = new LocalFileSystem();
    this.files.initialize(URI.create("file:///"), settings);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    File target = files.pathToFile(path);
    // named as Spark names its own, so that nothing takes it for an epoch or a version
    File temporary = new File(target.getParentFile(), "." + target.getName() + "." + UUID.randomUUID() + TEMPORARY);
    try {
      // not a channel of java.nio, which an interrupt of Spark's would close in the middle of a file
      OutputStream stream = new BufferedOutputStream(new FileOutputStream(temporary));
      return new Written(stream, temporary.toPath(), target.toPath(), overwriteIfPossible);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    try {
      return files.open(path);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    try {
      return files.listStatus(path, found -> !isTemporary(found.getName()) && filter.accept(found));
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public void mkdirs(Path path) {
    try {
      Files.createDirectories(files.pathToFile(path).toPath());
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public boolean exists(Path path) {
    try {
      return files.exists(path);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public void delete(Path path) {
    try {
      if (!files.delete(path, true) && files.exists(path)) {
        throw new IOException(path + " cannot be deleted");
      }
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public boolean isLocal() {
    return true;
  }

  @Override
  public Path createCheckpointDirectory() {
    Path qualified = files.makeQualified(root);
    mkdirs(qualified);
    return qualified;
  }

  private static boolean isTemporary(String name) {
    return name.startsWith(".") && name.endsWith(TEMPORARY);
  }

  /** Scala declares no exceptions, so Spark's trait has none; they are raised all the same, and Spark expects them. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException raised(Throwable failure) throws E {
    throw (E) failure;
  }

  /** One file on its way. It is closed or cancelled once; what comes after that does nothing. */
  private static final class Written extends CancellableFSDataOutputStream {
    private final OutputStream stream;
    private final java.nio.file.Path temporary;
    private final java.nio.file.Path target;
    private final boolean replaces;
    private boolean over;

    Written(OutputStream stream, java.nio.file.Path temporary, java.nio.file.Path target, boolean replaces) {
      super(stream);
      this.stream = stream;
      this.temporary = temporary;
      this.target = target;
      this.replaces = replaces;
    }

    @Override
    public synchronized void close() throws IOException {
      if (over) {
        return;
      }
      over = true;
      try {
        stream.close();
        if (replaces) {
          dropChecksum();
          Files.move(temporary, target, StandardCopyOption.ATOMIC_MOVE);
        } else {
          create();
        }
      } finally {
        removeTemporary();
      }
    }

    @Override
    public synchronized void cancel() {
      if (over) {
        return;
      }
      over = true;
      try {
        stream.close();
      } catch (IOException failure) {
        LOG.debug("{} was given up, and could not be closed", temporary, failure);
      }
      removeTemporary();
    }

    private void create() throws IOException {
      if (Files.exists(target, LinkOption.NOFOLLOW_LINKS)) {
        throw taken(null); // before its checksum is touched
      }
      dropChecksum();
      try {
        Files.createLink(target, temporary);
      } catch (IOException failure) {
        if (isOurs()) {
          return; // a file server whose answer was lost was asked again, and refused because of the first time
        }
        throw failure instanceof java.nio.file.FileAlreadyExistsException ? taken(failure) : failure;
      }
    }

    private boolean isOurs() {
      try {
        return Files.isSameFile(temporary, target);
      } catch (IOException unknown) {
        return false; // then the failure stands
      }
    }

    private void dropChecksum() throws IOException {
      Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
    }

    /** Raises nothing: the file is in its place, or another failure is on its way. */
    private void removeTemporary() {
      try {
        Files.deleteIfExists(temporary);
      } catch (IOException failure) {
        LOG.warn("{} stays behind: nothing reads it, it may be deleted", temporary, failure);
      }
    }

    private FileAlreadyExistsException taken(IOException cause) {
      FileAlreadyExistsException taken = new FileAlreadyExistsException(target + " exists: somebody else wrote it");
      taken.initCause(cause);
      return taken;
    }
  }
}
