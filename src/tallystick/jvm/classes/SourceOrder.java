package tallystick;

import java.io.Serializable;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.Partition;
import org.apache.spark.rdd.PartitionCoalescer;
import org.apache.spark.rdd.PartitionGroup;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import scala.Option;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * The partitions of a Kafka source in one order, whoever listed them.
 *
 * <p>Up to four of them come in the order in which the brokers named them, and when an epoch is done again in that of
 * Spark's log. Which rows a task gets, and so what is in a slice, follows from that order. Here they are put in the
 * order of topic, partition and offset, right behind the source: then a replay has the same slices, in whatever way
 * the steps behind it take partitions together. A plan whose sources are in order already stays as it is.
 */
public final class SourceOrder {
  private static final String KAFKA = "org.apache.spark.sql.kafka010.KafkaBatchInputPartition";

  private SourceOrder() {}

  static SparkPlan inOrder(SparkPlan plan) {
    return plan.transformUp(
        new AbstractPartialFunction<SparkPlan, SparkPlan>() {
          @Override
          public boolean isDefinedAt(SparkPlan step) {
            return step instanceof MicroBatchScanExec && places((MicroBatchScanExec) step) != null;
          }

          @Override
          public SparkPlan apply(SparkPlan step) {
            return new Ordered(places((MicroBatchScanExec) step), step);
          }
        });
  }

  /** Where the first partition is, the second one, and so on; null if they are in their places, or not Kafka's. */
  private static int[] places(MicroBatchScanExec source) {
    List<InputPartition> given = CollectionConverters.asJava(source.inputPartitions());
    Integer[] places = new Integer[given.size()];
    Arrays.setAll(places, place -> place);
    for (InputPartition partition : given) {
      if (!partition.getClass().getName().equals(KAFKA)) {
        return null;
      }
    }
    // printed, each begins with its topic, number and offsets, and no two are the same in these
    Integer[] ordered = places.clone();
    Arrays.sort(ordered, Comparator.comparing(place -> given.get(place).toString()));
    return Arrays.equals(ordered, places) ? null : Arrays.stream(ordered).mapToInt(place -> place).toArray();
  }

  /** A step that changes nothing but the order of partitions. Spark copies it, by its public constructor. */
  public static final class Ordered extends SparkPlan {
    private static final long serialVersionUID = 1;

    private final int[] places;
    private final SparkPlan source;

    public Ordered(int[] places, SparkPlan source) {
      this.places = places;
      this.source = source;
    }

    @Override
    public RDD<InternalRow> doExecute() {
      return source.execute().coalesce(places.length, false, Option.apply(new Moved(places)), null);
    }

    @Override
    public Seq<Attribute> output() {
      return source.output();
    }

    @Override
    public Seq<SparkPlan> children() {
      return CollectionConverters.asScala(List.of(source)).toSeq();
    }

    @Override
    public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
      return new Ordered(places, children.head());
    }

    @Override
    public int productArity() {
      return 2;
    }

    @Override
    public Object productElement(int number) {
      return number == 0 ? places : source;
    }

    @Override
    public boolean canEqual(Object other) {
      return other instanceof Ordered;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Ordered
          && source.equals(((Ordered) other).source)
          && Arrays.equals(places, ((Ordered) other).places);
    }

    @Override
    public int hashCode() {
      return 31 * source.hashCode() + Arrays.hashCode(places);
    }
  }

  private static final class Moved implements PartitionCoalescer, Serializable {
    private static final long serialVersionUID = 1;

    private final int[] places;

    Moved(int[] places) {
      this.places = places;
    }

    @Override
    public PartitionGroup[] coalesce(int most, RDD<?> given) {
      Partition[] partitions = given.partitions();
      if (partitions.length != places.length) {
        throw new IllegalStateException("a source of " + places.length + " partitions has " + partitions.length);
      }
      PartitionGroup[] groups = new PartitionGroup[places.length];
      for (int number = 0; number < groups.length; number++) {
        groups[number] = new PartitionGroup(Option.empty());
        groups[number].partitions().addOne(partitions[places[number]]);
      }
      return groups;
    }
  }
}
