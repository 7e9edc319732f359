package tallystick;

import java.io.Serializable;
import java.util.StringJoiner;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.LogicalRDD;
import scala.collection.Iterator;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/**
 * Runs an epoch and brings back what its tasks say, in one call from Python.
 *
 * <ol>
 *   <li><i>The rows are there already.</i> What {@code foreachBatch} hands over stands on an RDD; nothing is planned on
 *       top of it.
 *   <li><i>Nothing is inspected.</i> For every job Spark reads the byte code of the functions that go to its tasks, to
 *       cut off what they do not use. It leaves classes alone that have a name, as {@link OneText} has.
 *   <li><i>One text.</i> Each task gives one row with one text, a JSON value; together they are one JSON list, so that
 *       Python asks once, however many there are.
 * </ol>
 */
public final class EpochVotes {
  private EpochVotes() {}

  /**
   * Driver, on the thread of the query: evaluate these rows once. {@code properties} are names and values for the tasks,
   * by turns, each behind the other with a NUL between; they hold for this job and for none after it.
   */
  public static String collect(Dataset<Row> epoch, String properties) {
    SparkContext context = epoch.sparkSession().sparkContext();
    String[] pairs = properties.split("\0", -1);
    for (int at = 0; at + 1 < pairs.length; at += 2) {
      context.setLocalProperty(pairs[at], pairs[at + 1]);
    }
    try {
      Object texts = context.runJob(rows(epoch), new OneText(), ClassTag$.MODULE$.apply(String.class));
      StringJoiner joined = new StringJoiner(",", "[", "]").setEmptyValue("[]");
      for (String text : (String[]) texts) {
        if (text != null) {
          joined.add(text);
        }
      }
      return joined.toString();
    } finally {
      for (int at = 0; at + 1 < pairs.length; at += 2) {
        context.setLocalProperty(pairs[at], "");
      }
    }
  }

  private static RDD<InternalRow> rows(Dataset<Row> epoch) {
    LogicalPlan plan = epoch.queryExecution().logical();
    return plan instanceof LogicalRDD ? ((LogicalRDD) plan).rdd() : epoch.queryExecution().toRdd();
  }

  /** Executor: the text of a task's only row; null if it has none. */
  private static final class OneText extends AbstractFunction2<TaskContext, Iterator<InternalRow>, String>
      implements Serializable {
    private static final long serialVersionUID = 1;

    @Override
    public String apply(TaskContext task, Iterator<InternalRow> rows) {
      String text = rows.hasNext() ? rows.next().getUTF8String(0).toString() : null;
      if (rows.hasNext()) {
        throw new IllegalStateException("a slice has voted twice");
      }
      return text;
    }
  }
}
