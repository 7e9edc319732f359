package tallystick;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * How Spark writes a checkpoint to S3: each file is one object, put at once when it is closed.
 *
 * <ol>
 *   <li><i>The first one wins.</i> A file that must not be there yet (an entry of the offset or commit log) is put with
 *       {@code If-None-Match: *}. Of two drivers the second one gets a FileAlreadyExistsException, as it does on HDFS.
 *       S3A's own rename would look first and overwrite then.
 *   <li><i>What is there decides.</i> A client that got no answer asks again, and may be refused because of its own
 *       first try. So every such object carries the name of the put that made it. After any failure it is read: ours,
 *       then it was written; somebody else's, then it exists; not there, then the failure stands.
 *   <li><i>Whole or not at all.</i> Until a stream is closed nothing can be seen; one that is cancelled never is.
 *   <li><i>Files that may be there</i> (state, when an epoch is done again) are replaced by a plain put.
 * </ol>
 *
 * Made by Spark, on the driver and on executors, for {@code spark.sql.streaming.checkpointFileManagerClass}. The jar
 * beside this file is built from it by scripts/build_jar.py.
 */
public final class S3CheckpointFileManager implements CheckpointFileManager {
  private static final String PUT = "tallystick-put";
  private static final String ABORTABLE = "fs.capability.outputstream.abortable";

  private final Path root;
  private final FileSystem files;

  public S3CheckpointFileManager(Path root, Configuration settings) throws IOException {
    this.root = root;
    this.files = root.getFileSystem(settings);
    if (!"s3a".equals(files.getScheme())) {
      throw new IOException(root + " is not in S3: " + getClass().getName() + " writes checkpoints there only");
    }
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    String mine = UUID.randomUUID().toString();
    try {
      FSDataOutputStreamBuilder<?, ?> file = files.createFile(path).recursive().overwrite(overwriteIfPossible);
      if (overwriteIfPossible) {
        file.must("fs.s3a.create.performance", true); // a plain put, without a look what is there
      } else {
        file.must("fs.option.create.conditional.overwrite", true).must("fs.s3a.create.header." + PUT, mine);
      }
      FSDataOutputStream stream = (FSDataOutputStream) file.build();
      if (!stream.hasCapability(ABORTABLE)) {
        throw new IOException(path + " cannot be written: a stream to it cannot be given up");
      }
      return new Put(stream, path, overwriteIfPossible ? null : mine);
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
      return files.listStatus(path, filter);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public void mkdirs(Path path) {
    try {
      files.mkdirs(path);
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
      files.delete(path, true);
    } catch (FileNotFoundException gone) {
      // that is what was wanted
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public boolean isLocal() {
    return false;
  }

  @Override
  public Path createCheckpointDirectory() {
    Path qualified = files.makeQualified(root);
    mkdirs(qualified);
    return qualified;
  }

  /** Whose put made this object; null if nothing is there, and "" if it is not one of ours. */
  private String creator(Path path) throws IOException {
    try {
      byte[] name = files.getXAttrs(path).get("header." + PUT);
      return name == null ? "" : new String(name, StandardCharsets.UTF_8);
    } catch (FileNotFoundException absent) {
      return null;
    }
  }

  /** Scala declares no exceptions, so Spark's trait has none; they are raised all the same, and Spark expects them. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException raised(Throwable failure) throws E {
    throw (E) failure;
  }

  /** One object on its way. It is closed or cancelled once; what comes after that does nothing. */
  private final class Put extends CancellableFSDataOutputStream {
    private final FSDataOutputStream stream;
    private final Path path;
    private final String mine;
    private boolean over;

    /** {@code mine} names this put; null if it replaces what is there. */
    Put(FSDataOutputStream stream, Path path, String mine) {
      super(stream);
      this.stream = stream;
      this.path = path;
      this.mine = mine;
    }

    @Override
    public synchronized void close() throws IOException {
      if (over) {
        return;
      }
      over = true;
      try {
        stream.close();
      } catch (IOException failure) {
        settle(failure);
      }
    }

    @Override
    public synchronized void cancel() {
      if (!over) {
        over = true;
        stream.abort();
      }
    }

    private void settle(IOException failure) throws IOException {
      if (mine == null) {
        throw failure; // what replaces may be repeated: Spark does the task again
      }
      String creator;
      try {
        creator = creator(path);
      } catch (IOException unknown) {
        failure.addSuppressed(unknown);
        throw failure;
      }
      if (creator == null) {
        throw failure;
      }
      if (!creator.equals(mine)) {
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path + " exists: somebody else wrote it");
        taken.initCause(failure);
        throw taken;
      }
    }
  }
}
